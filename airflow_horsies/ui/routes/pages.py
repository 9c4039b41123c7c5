"""The pages, which scripts fill from the other routes, and their static files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from html import escape
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable

from airflow.api_fastapi.core_api.security import get_user
from fastapi import APIRouter, Depends, HTTPException, Response
from fastapi.responses import HTMLResponse

from airflow_horsies.links import URL_PREFIX, base_path
from airflow_horsies.ui.access import MAY_READ, MAY_READ_CONNECTION, MAY_SEE_CLUSTER

# Airflow shows these pages in an iframe.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STYLES = ("styles/base.css", "styles/parts.css", "styles/charts.css", "styles/log.css", "styles/graph.css")
# Airflow leaves this in the address of a task instance that is not mapped.
NO_MAP_INDEX = ("{MAP_INDEX}", "")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="{static}/horsies.svg">
{styles}
<script type="module" src="{static}/{script}.js"></script>
</head>
<body data-base="{base}">
<main id="page">{content}</main>
<noscript>This page needs JavaScript.</noscript>
</body>
</html>
"""
LOADING = '<p class="quiet" role="status">Loading…</p>'

router = APIRouter()


@router.get("/", dependencies=MAY_SEE_CLUSTER)
def overview_page() -> Response:
    return _page("Horsies", "overview")


@router.get("/tasks", dependencies=MAY_READ_CONNECTION)
def reference_page() -> Response:
    return _page("Tasks and workflows · Horsies", "reference")


@router.get("/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}", dependencies=MAY_READ)
def instance_page(dag_id: str, run_id: str, task_id: str, map_index: str) -> Response:
    if map_index not in NO_MAP_INDEX and not map_index.lstrip("-").isdigit():
        raise HTTPException(HTTPStatus.NOT_FOUND, "This task instance does not exist.")
    return _page(f"{task_id} · Horsies", "instance")


@router.get("/dags/{dag_id}/gantt/{run_id:path}", dependencies=MAY_READ)
def run_page(dag_id: str, run_id: str) -> Response:
    return _page(f"{dag_id} · Horsies", "run")


@router.get("/static/{digest}/{name:path}", dependencies=[Depends(get_user)])
def static_file(digest: str, name: str) -> Response:
    content = _static_files().get(name)
    if content is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "This file does not exist.")
    # The address changes with the content.
    cache_control = "private, max-age=31536000, immutable" if digest == _digest() else "no-store"
    media_type = MEDIA_TYPES[name[name.rindex(".") :]]
    return Response(content, media_type=media_type, headers={"cache-control": cache_control})


def problem_page(status: int, detail: str) -> Response:
    """A problem as an HTML page."""
    title = {
        HTTPStatus.UNAUTHORIZED: "Please log in to Airflow",
        HTTPStatus.FORBIDDEN: "Access denied",
        HTTPStatus.NOT_FOUND: "Not found",
    }.get(HTTPStatus(status), HTTPStatus(status).phrase)
    if status == HTTPStatus.FORBIDDEN:
        detail = "Your role in Airflow does not allow this. Ask for access to the DAG or to cluster activity."
    if status == HTTPStatus.UNAUTHORIZED:
        detail = "You are not logged in, or your session has ended."
    content = (
        f'<section class="state problem" role="alert"><h1>{escape(title)}</h1><p>{escape(detail)}</p>'
        f'<p><a href="{escape(base_path())}/" data-top>Open Airflow</a></p></section>'
    )
    return _page(title, "problem", content=content, status=int(status))


def _page(title: str, script: str, *, content: str = LOADING, status: int = 200) -> Response:
    base = base_path()
    static = escape(f"{base}{URL_PREFIX}/static/{_digest()}")
    page = PAGE.format(
        title=escape(title),
        static=static,
        styles="\n".join(f'<link rel="stylesheet" href="{static}/{name}">' for name in STYLES),
        script=script,
        base=escape(base),
        content=content,
    )
    return HTMLResponse(page, status_code=status, headers={"content-security-policy": PAGE_POLICY})


@cache
def _static_files() -> dict[str, bytes]:
    """Content by path in the folder."""
    return dict(_read_files(files("airflow_horsies.ui").joinpath("static"), ""))


def _read_files(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _read_files(file, f"{path}{file.name}/")
        elif file.name.endswith(tuple(MEDIA_TYPES)):
            yield f"{path}{file.name}", file.read_bytes()


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for name, content in sorted(_static_files().items()):
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:16]
