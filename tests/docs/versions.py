"""The versions that the pages show, from the code: ``make docs`` writes them, and a test compares them."""

from __future__ import annotations

import re

from airflow_horsies import __version__
from airflow_horsies.ledger.schema import latest_version
from airflow_horsies.wire.schema import NEWEST_TESTED_VERSION


def with_versions(text: str) -> str:
    """A page with the versions of this package, of our own tables and of horsies' schema that this release knows."""
    ledger, schema = latest_version(), NEWEST_TESTED_VERSION
    for shown, present in {
        r"(tables are|already) at version \d+$": rf"\1 at version {ledger}",
        r"tables are at version \d+, and this release supports only \d+": (
            f"tables are at version {ledger + 1}, and this release supports only {ledger}"
        ),
        r"schema is at version \d+, newer than \d+": f"schema is at version {schema + 1}, newer than {schema}",
        r"\(schema version \d+, ": f"(schema version {schema}, ",
        r"airflow_horsies-[\w.]+-py3": f"airflow_horsies-{__version__}-py3",
    }.items():
        text = re.sub(shown, present, text, flags=re.MULTILINE)
    return text
