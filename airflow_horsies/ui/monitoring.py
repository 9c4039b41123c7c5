"""Upstream's own monitoring app, where ``horsies[web]`` is installed: to look at, not to act with."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import threading
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy.engine import URL

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import URL_PREFIX, base_path
from airflow_horsies.ui.access import MAY_READ_CONNECTION, conn_id
from airflow_horsies.ui.answers import problem
from airflow_horsies.ui.gate import Message, Receive, Send

NOT_INSTALLED = (
    "Upstream's monitoring app is not installed on the api-server: pip install 'airflow-horsies[web]' (Python 3.13)."
)
FAILED = "Upstream's monitoring app could not read the horsies database. The api-server's log tells more."
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

log = logging.getLogger(__name__)
router = APIRouter()
_apps: dict[str, Any] = {}
_lock = threading.Lock()


def is_installed() -> bool:
    return find_spec("horsies") is not None and find_spec("horsies.web") is not None


@router.get("/monitoring/{path:path}", dependencies=MAY_READ_CONNECTION)
def monitoring(path: str, request: Request) -> Response:
    """Upstream's app, as it is."""
    if not is_installed():
        raise HTTPException(HTTPStatus.NOT_FOUND, NOT_INSTALLED)
    return Delegated(_monitoring_app(), path)


class Delegated(Response):
    """An answer that another ASGI app gives, under a path of ours."""

    def __init__(self, app: Any, path: str) -> None:
        super().__init__()
        self._app = app
        self._path = path

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        root = f"{base_path()}{URL_PREFIX}/monitoring"
        inner = {**scope, "root_path": root, "path": f"{root}/{self._path}", "raw_path": None, "path_params": {}}
        await self._app(inner, receive, Policed(send))


class Policed:
    """Gives a page of upstream's a policy under which its own inline script runs, and no other; and keeps to the log
    what upstream tells of a failure: the driver's words, with the address of the database."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and (_is_failure(message) or _is_page(message)):
            self._held = message
        elif self._held is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._answer(self._held)
        else:
            await self._send(message)

    async def _answer(self, start: Message) -> None:
        if _is_failure(start):
            told = self._body.decode("utf-8", "replace")
            log.warning("Upstream's monitoring app answers %d: %s", start["status"], told)
            answer = problem(start["status"], FAILED)
            start, self._body = {**start, "headers": answer.raw_headers}, bytes(answer.body)
        else:
            start = {**start, "headers": [*start["headers"], (b"content-security-policy", _policy(self._body))]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": self._body})


def _is_failure(start: Message) -> bool:
    return bool(start["status"] >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _is_page(start: Message) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in start["headers"])


def _policy(page: bytes) -> bytes:
    scripts = [base64.b64encode(hashlib.sha256(text).digest()) for text in INLINE_SCRIPT.findall(page)]
    allowed = b" ".join([b"'self'", *(b"'sha256-" + digest + b"'" for digest in scripts)])
    return (
        b"default-src 'none'; script-src " + allowed + b"; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        b"font-src 'self'; connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'self'"
    )


def _monitoring_app() -> Any:
    with HorsiesHook(conn_id()) as hook:
        args = dict(hook.connect_args)
    url = URL.create(
        "postgresql+psycopg",
        username=args.pop("user", None),
        password=args.pop("password", None),
        host=args.pop("host", None),
        port=int(args.pop("port", 5432)),
        database=args.pop("dbname", None),
        query={name: str(value) for name, value in args.items()},
    ).render_as_string(hide_password=False)
    with _lock:
        if url not in _apps:
            # That of another connection, which was changed since, is not kept.
            _apps.clear()
            horsies, web = import_module("horsies"), import_module("horsies.web")
            app = horsies.Horsies(horsies.AppConfig(broker=horsies.PostgresConfig(database_url=url)))
            _apps[url] = web.create_monitoring_app(app, auth_policy=web.ViewOnly(), actions_enabled=False)
        return _apps[url]
