from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui.routes.monitoring import Delegated, Policed

SCRIPT = b"window.x = 1"
PAGE = b"<html><script>" + SCRIPT + b"</script><script src=a.js></script></html>"


def sent_through(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        policed = Policed(send)
        for message in messages:
            await policed(message)

    asyncio.run(run())
    return sent


def start(content_type: bytes) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]}


def body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


@pytest.mark.parametrize("cut", [0, 20, len(PAGE)])
def test_a_page_may_run_its_own_inline_script_and_no_other(cut: int) -> None:
    begun, content = sent_through(start(b"text/html; charset=utf-8"), body(PAGE[:cut], more=True), body(PAGE[cut:]))
    assert content["body"] == PAGE
    policy = dict(begun["headers"])[b"content-security-policy"].decode()
    digest = base64.b64encode(hashlib.sha256(SCRIPT).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_what_is_no_page_goes_through_as_it_comes() -> None:
    messages = [start(b"text/event-stream"), body(b"data: 1\n\n", more=True), body(b"")]
    assert sent_through(*messages) == messages


def test_secrets_in_what_is_told_of_tasks_are_masked() -> None:
    told = b'{"kwargs": "{\\"uri\\": \\"x://etl:hunter2@db\\"}", "password": "hunter2", "rows": [1, null]}'
    begun, content = sent_through(start(b"application/json"), body(told[:9], more=True), body(told[9:]))
    assert json.loads(content["body"]) == {
        "kwargs": '{"uri": "x://etl:***@db"}',
        "password": "***",
        "rows": [1, None],
    }
    assert dict(begun["headers"])[b"content-length"] == str(len(content["body"])).encode()


def test_the_other_app_is_told_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow.test/team")
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "path": "/team/horsies/monitoring/api/meta", "root_path": "/team/horsies"}
    asyncio.run(Delegated(app, "api/meta")(scope, None, None))  # type: ignore[arg-type]
    assert (seen[0]["root_path"], seen[0]["path"]) == (
        "/team/horsies/monitoring",
        "/team/horsies/monitoring/api/meta",
    )
