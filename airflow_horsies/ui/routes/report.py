"""The reports that tasks created."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import HTMLResponse

from airflow_horsies.client import ledger
from airflow_horsies.core.report import Report
from airflow_horsies.links import report_path
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_READ_CONNECTION
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.threads import OwnThreadRoute

# A report is one page without scripts. Names of tasks in it must never become markup.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox"

router = APIRouter(route_class=OwnThreadRoute)


@router.get("/reports/{name}/{start}/{end}", dependencies=MAY_READ_CONNECTION)
def report_page(name: str, start: datetime, end: datetime) -> Response:
    if "\x00" in name or start.utcoffset() is None or end.utcoffset() is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "This report does not exist.")
    with page_client() as client:
        page = ledger.read_report(client, name, start, end)
    if page is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "This report does not exist. It may have been replaced or removed.")
    return HTMLResponse(page, headers={"content-security-policy": REPORT_POLICY})


def report_payload(report: Report) -> payloads.Report:
    return payloads.Report(
        name=report.name,
        start=report.period_start,
        end=report.period_end,
        made_at=report.made_at,
        url=report_path(report),
    )
