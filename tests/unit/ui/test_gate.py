from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest

from airflow_horsies.ui.gate import SECURITY_HEADERS, Gate


def answer(gate: Gate) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(gate({"type": "http", "path": "/"}, receive, send))
    return sent


def gate_before(monkeypatch: pytest.MonkeyPatch, *headers: tuple[bytes, bytes]) -> Gate:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await send({"type": "http.response.body", "body": b"text"})

    module = ModuleType("routes_behind_the_gate")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Gate(module.__name__)


def test_answers_get_the_security_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    start, body = answer(gate_before(monkeypatch, (b"content-type", b"text/plain")))
    assert dict(start["headers"]) == {b"content-type": b"text/plain", **SECURITY_HEADERS}
    assert body["body"] == b"text"


def test_an_answer_may_bring_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (b"Content-Security-Policy", b"default-src 'self'")
    start, _ = answer(gate_before(monkeypatch, own))
    policies = [value for name, value in start["headers"] if name.lower() == b"content-security-policy"]
    assert policies == [own[1]]


def test_a_token_in_the_path_is_for_the_routes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])

    module = ModuleType("routes_that_read_the_path")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    token = f"hcb_{'x' * 43}"
    scope = {"type": "http", "path": f"/horsies/callbacks/{token}/fail", "raw_path": token.encode()}

    async def nothing(*_: Any) -> Any:
        return {}

    asyncio.run(Gate(module.__name__)(scope, nothing, nothing))
    assert seen == [f"/horsies/callbacks/{token}/fail"]
    # Airflow logs it from here when the request has ended.
    assert scope["path"] == "/horsies/callbacks/hcb_***/fail"
    assert token not in str(scope)
