"""Upstream's own monitoring app, read-only, if ``horsies[web]`` is installed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy.engine import URL

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import URL_PREFIX, base_path
from airflow_horsies.ui.access import MAY_READ_CONNECTION, conn_id
from airflow_horsies.ui.answers import masked_value, problem
from airflow_horsies.ui.gate import Message, Receive, Send

NOT_INSTALLED = (
    "Upstream's monitoring app is not installed on the api-server. Install it there with "
    "pip install 'airflow-horsies[web]' (Python 3.13)."
)
FAILED = "Upstream's monitoring app could not read the horsies database. See the api-server's log."
PAGE = b"text/html"
JSON = b"application/json"
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

log = logging.getLogger(__name__)
router = APIRouter()
CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MonitoringApp:
    """Upstream's app on one database, with its connections."""

    url: str = field(repr=False)
    broker: Any
    web: Any

    async def close(self) -> None:
        """Must run in the event loop that used the app."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.web.state.events.close()
                await self.broker.close_async()
        except Exception:
            log.warning("Upstream's monitoring app did not close its connections.", exc_info=True)


class CurrentApp:
    """The app of the current connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: MonitoringApp | None = None
        self._outdated: list[MonitoringApp] = []

    def get(self, url: str) -> MonitoringApp:
        with self._lock:
            if self._current is None or self._current.url != url:
                if self._current is not None:
                    self._outdated.append(self._current)
                self._current = _make_app(url)
            return self._current

    async def close_outdated(self) -> None:
        with self._lock:
            outdated, self._outdated = self._outdated, []
        for app in outdated:
            await app.close()


current_app = CurrentApp()


def is_installed() -> bool:
    return find_spec("horsies") is not None and find_spec("horsies.web") is not None


@router.get("/monitoring/{path:path}", dependencies=MAY_READ_CONNECTION)
def monitoring(path: str, request: Request) -> Response:
    """Upstream's app, unchanged."""
    if not is_installed():
        raise HTTPException(HTTPStatus.NOT_FOUND, NOT_INSTALLED)
    return Delegated(current_app.get(_database_url()).web, path)


class Delegated(Response):
    """A response of another ASGI app, under a path of ours."""

    def __init__(self, app: Any, path: str) -> None:
        super().__init__()
        self._app = app
        self._path = path

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        root = f"{base_path()}{URL_PREFIX}/monitoring"
        await current_app.close_outdated()
        inner = {**scope, "root_path": root, "path": f"{root}/{self._path}", "raw_path": None, "path_params": {}}
        await self._app(inner, receive, Policed(send))


class Policed:
    """Sets a policy on pages of upstream under which only their own inline script runs, masks secrets in data of tasks,
    and logs the text of a failure instead of sending it: it may contain the database's address."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and (
            _is_failure(message) or _is_of(message, PAGE) or _is_of(message, JSON)
        ):
            self._held = message
        elif self._held is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._answer(self._held)
        else:
            await self._send(message)

    async def _answer(self, start: Message) -> None:
        if _is_failure(start):
            text = self._body.decode("utf-8", "replace")
            log.warning("Upstream's monitoring app responds with status %d: %s", start["status"], text)
            answer = problem(start["status"], FAILED)
            start, self._body = {**start, "headers": answer.raw_headers}, bytes(answer.body)
        elif _is_of(start, JSON):
            self._body = json.dumps(masked_value(json.loads(self._body))).encode()
            headers = [header for header in start["headers"] if header[0].lower() != b"content-length"]
            start = {**start, "headers": [*headers, (b"content-length", str(len(self._body)).encode())]}
        else:
            start = {**start, "headers": [*start["headers"], (b"content-security-policy", _policy(self._body))]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": self._body})


def _is_failure(start: Message) -> bool:
    return bool(start["status"] >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _is_of(start: Message, media_type: bytes) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(media_type) for name, value in start["headers"])


def _policy(page: bytes) -> bytes:
    scripts = [base64.b64encode(hashlib.sha256(text).digest()) for text in INLINE_SCRIPT.findall(page)]
    allowed = b" ".join([b"'self'", *(b"'sha256-" + digest + b"'" for digest in scripts)])
    return (
        b"default-src 'none'; script-src " + allowed + b"; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        b"font-src 'self'; connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'self'"
    )


def _database_url() -> str:
    args = dict(HorsiesHook(conn_id()).settings.database.connect_args)
    return URL.create(
        "postgresql+psycopg",
        username=args.pop("user", None),
        password=args.pop("password", None),
        host=args.pop("host", None),
        port=int(args.pop("port", 5432)),
        database=args.pop("dbname", None),
        query={name: str(value) for name, value in args.items()},
    ).render_as_string(hide_password=False)


def _make_app(url: str) -> MonitoringApp:
    horsies, web = import_module("horsies"), import_module("horsies.web")
    app = horsies.Horsies(horsies.AppConfig(broker=horsies.PostgresConfig(database_url=url)))
    made = web.create_monitoring_app(app, auth_policy=web.ViewOnly(), actions_enabled=False)
    return MonitoringApp(url, app.get_broker(), made)
