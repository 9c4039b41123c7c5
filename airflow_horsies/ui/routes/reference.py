"""The reference of the tasks and workflows that workers know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from airflow_horsies.core.catalog import KnownKind, KnownTask
from airflow_horsies.core.parameters import UNCHECKED, describe_type
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_READ_CONNECTION
from airflow_horsies.ui.answers import json_answer, masked_value, shown_text
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.routes.overview import Shared
from airflow_horsies.ui.threads import OwnThreadRoute

DEFAULT_PAGE = 25
MAX_PAGE = 100
MAX_OFFSET = 100_000
MAX_SEARCH_CHARS = 200
MAX_PARAMETERS = 200
MAX_DEFAULT_CHARS = 200
MAX_NAMES = 50

router = APIRouter(route_class=OwnThreadRoute)


def _read_catalog() -> list[KnownTask]:
    with page_client() as client:
        return client.read_catalog()


# Many users may search. It is read once for all of them in a moment.
catalog = Shared(_read_catalog)


@router.get("/api/known", dependencies=MAY_READ_CONNECTION)
def read_known(
    search: Annotated[str, Query(max_length=MAX_SEARCH_CHARS)] = "",
    kind: KnownKind | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
) -> Response:
    """What workers have recorded lately, by name; each word of the search must be in its name, its parameters, its
    queues or its docstring."""
    known = catalog.get()
    words = search.lower().split()
    found = [entry for entry in known if kind in (None, entry.kind) and all(word in _text_of(entry) for word in words)]
    return json_answer(
        payloads.Reference(
            now=datetime.now(UTC),
            recorded=len(known),
            total=len(found),
            offset=offset,
            entries=[_entry(entry) for entry in found[offset : offset + limit]],
        )
    )


def _text_of(entry: KnownTask) -> str:
    return " ".join((entry.name, entry.signature, *entry.served_queues, entry.doc or "")).lower()


def _entry(entry: KnownTask) -> payloads.KnownEntry:
    properties = entry.parameters.get("properties")
    parameters = properties if isinstance(properties, Mapping) else {}
    required = entry.parameters.get("required")
    needed = set(required) if isinstance(required, list) else set()
    return payloads.KnownEntry(
        kind=entry.kind,
        name=shown_text(entry.name) or "",
        doc=shown_text(entry.doc),
        queue=entry.queue,
        served_queues=entry.served_queues[:MAX_NAMES],
        parameters=[
            _parameter(name, schema, is_required=name in needed)
            for name, schema in list(parameters.items())[:MAX_PARAMETERS]
        ],
        takes_others=bool(entry.parameters.get(UNCHECKED)) or entry.parameters.get("additionalProperties") is not False,
        workers=entry.workers,
        hosts=entry.hosts[:MAX_NAMES],
        releases=entry.releases[:MAX_NAMES],
        seen_at=entry.seen_at,
        is_live=entry.is_live,
        is_disputed=entry.is_disputed,
    )


def _parameter(name: str, schema: Any, *, is_required: bool) -> payloads.KnownParameter:
    described = schema if isinstance(schema, Mapping) else {}
    default = None
    if "default" in described:
        # With its name, which tells whether it is a secret.
        shown = masked_value({name: described["default"]})[name]
        default = shown_text(json.dumps(shown, ensure_ascii=False, default=str), max_chars=MAX_DEFAULT_CHARS)
    return payloads.KnownParameter(
        name=shown_text(name) or "",
        type=shown_text(describe_type(described)) or "",
        is_required=is_required,
        default=default,
        description=shown_text(described.get("description")),
    )
