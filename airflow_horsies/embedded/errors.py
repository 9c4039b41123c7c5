"""The one error of the embedded stack."""

from __future__ import annotations

from airflow_horsies.exceptions import HorsiesError


class EmbeddedError(HorsiesError):
    """A part of the embedded stack cannot start; the message says what to do."""
