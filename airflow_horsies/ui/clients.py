"""The client of a request, on the connection of the api-server."""

from __future__ import annotations

from airflow_horsies.client.pages import READ_SECONDS, PageClient
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ui.access import conn_id


def page_client(*, seconds: float = READ_SECONDS) -> PageClient:
    """:param seconds: how long the request may use the database in total."""
    return PageClient(HorsiesHook(conn_id()).settings, seconds=seconds)
