"""Whatever is asked of the routes, fitting their schema or not: no error of ours, nothing of a hidden DAG."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
import requests
import schemathesis
from fastapi.openapi.utils import get_openapi
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.ui.gate import SECURITY_HEADERS
from tests.integration.releases import MOVED
from tests.integration.ui_site import (
    FOREIGN_WRITER,
    HIDDEN,
    HIDDEN_MARK,
    OWN,
    PAGES,
    STRANGER,
    Fields,
    Planted,
    Site,
)

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui import api

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

USERS = (None, STRANGER, FOREIGN_WRITER, "viewer", "writer")
# Something that exists, often enough to get behind the first check.
KNOWN = {
    "dag_id": [HIDDEN.dag_id, OWN.dag_id, "~"],
    "run_id": [HIDDEN.run_id, OWN.run_id, f"{OWN.run_id}/tasks/x"],
    "task_id": [HIDDEN.task_id, OWN.task_id],
    "map_index": [-1],
    "name": ["run.js", "common/dom.js", "styles/base.css"],
    "path": ["", "api/tasks", "api/meta"],
    "position": [0, 1, 2, 3],
    "life": [1],
    "round": [1],
    "before_at": ["2100-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"],
    "before_id": [],
}


def make_schema(planted: Planted) -> Any:
    """The app itself publishes none."""
    spec = get_openapi(title="horsies", version="1", routes=api.app.routes)
    for path in spec["paths"].values():
        for operation in path.values():
            # Who asks is told by the test.
            operation.pop("security", None)
            for parameter in operation.get("parameters", ()):
                if known := {**KNOWN, "before_id": list(planted.hidden_ids)}.get(parameter["name"]):
                    parameter["schema"] = {"anyOf": [{"enum": known}, parameter["schema"]]}
    spec.get("components", {}).pop("securitySchemes", None)
    return schemathesis.openapi.from_dict(spec)


def operations(planted: Planted) -> Iterator[tuple[Any, GenerationMode]]:
    for found in make_schema(planted).get_all_operations():
        operation = found.ok()
        yield operation, GenerationMode.POSITIVE
        if operation.query or operation.body:
            yield operation, GenerationMode.NEGATIVE


def ask_anything(site: Site, planted: Planted, user: str | None, *, password: str, examples: int, same: bool) -> None:
    session = requests.Session()
    session.trust_env = False

    def ask(case: Case) -> None:
        session.cookies.clear()
        answer = case.call(base_url=site.origin + PAGES, session=session, headers=site.bearer(user), timeout=30)
        asked = case.as_curl_command()
        assert answer.status_code < 500, asked
        text = answer.content.decode("utf-8", "replace")
        assert password not in text, asked
        if user in (None, STRANGER, FOREIGN_WRITER):
            assert HIDDEN_MARK not in text.lower(), asked
            assert not any(task_id in text for task_id in planted.hidden_ids), asked
        # Starlette's mounts know no newline: Airflow's own page answers.
        if "\n" in unquote(str(answer.request.url)):
            return
        if user is None:
            # 400: FastAPI reads a body before it asks who sent it.
            assert answer.status_code in (400, 401, 404, 405, 422), asked
        for name, value in SECURITY_HEADERS.items():
            given_values = answer.headers.get(name.decode(), [])
            assert len(given_values) == 1, (asked, name)
            assert answer.status_code < 300 or given_values == [value.decode()], asked

    options = settings(
        max_examples=examples,
        database=None,
        derandomize=same,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with session:
        for operation, mode in operations(planted):
            options(given(operation.as_strategy(mode))(ask))()


@pytest.fixture
def seeded(site: Site, fields: Fields, planted: Planted) -> Site:
    site.connect(fields(planted.database))
    return site


@pytest.mark.parametrize("user", USERS)
def test_whatever_is_asked_is_answered_safely(
    seeded: Site, planted: Planted, postgres: EmbeddedPostgres, user: str | None
) -> None:
    password = postgres.conninfo()["password"]
    ask_anything(seeded, planted, user, password=password, examples=6, same=True)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("user", USERS)
def test_much_that_is_asked_at_random_is_answered_safely(
    seeded: Site, planted: Planted, postgres: EmbeddedPostgres, user: str | None
) -> None:
    password = postgres.conninfo()["password"]
    ask_anything(seeded, planted, user, password=password, examples=100, same=False)
