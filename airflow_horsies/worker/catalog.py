"""What an app knows: its tasks and workflows with the JSON schemas of their parameters, as workers record it.

No secret may enter it: values that may be one are left out.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from horsies import Horsies, QueueMode
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from airflow_horsies.borrowed.horsies import known_definitions, parameters_of
from airflow_horsies.client.reporting import CatalogEntry, KnownKind
from airflow_horsies.core.chunk import CHUNK_SUFFIX
from airflow_horsies.core.masking import mask_text
from airflow_horsies.core.parameters import FILLED_BY_WORKFLOW, UNCHECKED
from airflow_horsies.core.spec import DEFAULT_QUEUE
from airflow_horsies.worker.arguments import Argument, is_engine_slot
from airflow_horsies.worker.masking import SECRET_NAME, presentable
from airflow_horsies.worker.tasks import arguments_of
from airflow_horsies.worker.workflows import ARGUMENTS

log = logging.getLogger(__name__)

MAX_ENTRIES = 2_000
MAX_SCHEMA_CHARS = 16_000
MAX_DOC_CHARS = 2_000
MAX_DEFAULT_CHARS = 200
# Parts of pydantic's schemas that convert values in ways that JSON schemas do not show.
CONVERTING = ("'function-before'", "'function-wrap'", "'function-plain'", "'call'", "coerce_numbers_to_str")
# Values of an author in a JSON schema.
VALUES = frozenset({"default", "example", "examples"})
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Catalog:
    """What an app knows, the queues it serves, and a digest of what it knows."""

    digest: bytes
    queues: tuple[str, ...]
    entries: tuple[CatalogEntry, ...]


def make_catalog(app: Horsies) -> Catalog | None:
    """None if the app has too many tasks: then nothing is told, so that nothing is refused."""
    entries = sorted([*_tasks(app), *_workflows()], key=lambda entry: (entry.kind, entry.name))
    if len(entries) > MAX_ENTRIES:
        log.warning(
            "The app has %d tasks and workflows, and Airflow can list and check at most %d. None is recorded.",
            len(entries),
            MAX_ENTRIES,
        )
        return None
    content = json.dumps([[entry.kind, entry.name, entry.queue, entry.parameters, entry.doc] for entry in entries])
    return Catalog(hashlib.sha256(content.encode()).digest(), _queues(app), tuple(entries))


def _tasks(app: Horsies) -> Iterator[CatalogEntry]:
    ours = arguments_of(app)
    for name, task in app.tasks.items():
        if name.removesuffix(CHUNK_SUFFIX) in ours and name.endswith(CHUNK_SUFFIX):
            continue
        known: Any = task
        function = known._original_fn
        arguments: Iterable[Argument] = ours[name] if name in ours else read_arguments(function)
        yield CatalogEntry(
            kind=KnownKind.TASK,
            name=name,
            queue=known.task_queue_name,
            parameters=describe_schema(arguments),
            doc=_doc_of(known),
        )


def _workflows() -> Iterator[CatalogEntry]:
    for key, definition in known_definitions().items():
        build_with = parameters_of(definition)
        arguments = getattr(definition, ARGUMENTS, None) or read_arguments(build_with, skip=2)
        takes_any = any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD
            for parameter in inspect.signature(build_with).parameters.values()
        )
        yield CatalogEntry(
            kind=KnownKind.WORKFLOW,
            name=key,
            queue=None,
            parameters=describe_schema(arguments, takes_any=takes_any),
            doc=_doc_of(definition),
        )


def _queues(app: Horsies) -> tuple[str, ...]:
    queues = app.config.custom_queues
    if app.config.queue_mode is QueueMode.CUSTOM and queues:
        return tuple(queue.name for queue in queues)
    return (DEFAULT_QUEUE,)


def read_arguments(function: Callable[..., Any], *, skip: int = 0) -> list[Argument]:
    """The keyword parameters of a function that horsies itself has accepted.

    :param skip: how many positional parameters come before them.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    found = []
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            continue
        hint: Any = hints.get(parameter.name, Any)
        adapter = None if is_engine_slot(hint) else _adapter_of(hint)
        found.append(Argument(parameter.name, hint, parameter.default, adapter))
    return found


def describe_schema(arguments: Iterable[Argument], *, takes_any: bool = False) -> str:
    """The JSON schema of keyword arguments, without values that may be secret."""
    properties: dict[str, Any] = {}
    defs: dict[str, Any] = {}
    required = []
    for argument in arguments:
        schema: dict[str, Any] = {FILLED_BY_WORKFLOW: True}
        if argument.adapter is not None:
            schema = _describe(argument.adapter)
            types = schema.pop("$defs", {})
            if any(defs.get(name, found) != found for name, found in types.items()):
                # Two types with one name.
                schema = {UNCHECKED: True}
            else:
                defs |= types
        properties[argument.name] = {**schema, **_default_of(argument)}
        if argument.is_required and argument.adapter is not None:
            required.append(argument.name)
    whole: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if not takes_any:
        whole["additionalProperties"] = False
    text = json.dumps({**whole, "$defs": defs} if defs else whole)
    if len(text) <= MAX_SCHEMA_CHARS:
        return text
    names = {name: {UNCHECKED: True} for name in properties}
    text = json.dumps({**whole, "properties": names})
    return text if len(text) <= MAX_SCHEMA_CHARS else json.dumps({"type": "object", UNCHECKED: True})


def _describe(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    try:
        schema = adapter.json_schema()
        converts = any(part in str(adapter.core_schema) for part in CONVERTING)
    except Exception:
        # Any error of pydantic or of the author's types: the task itself still runs.
        return {UNCHECKED: True}
    cleaned: dict[str, Any] = _without_values(schema)
    # The title of a parameter's type repeats its name.
    cleaned.pop("title", None)
    return {**cleaned, UNCHECKED: True} if converts else cleaned


def _without_values(schema: Any) -> Any:
    match schema:
        case Mapping():
            return {
                str(key): _without_values(value)
                for key, value in schema.items()
                # A field may have such a name: then its value is a schema.
                if key not in VALUES or (isinstance(value, Mapping) and value.keys() & {"type", "$ref", "anyOf"})
            }
        case list():
            return [_without_values(item) for item in schema]
        case str():
            return _public(schema)
    return schema


def _default_of(argument: Argument) -> dict[str, Any]:
    if argument.is_required or argument.adapter is None or argument.is_secret:
        return {}
    try:
        value = to_jsonable_python(argument.default)
        text = json.dumps(value, allow_nan=False)
    except Exception:
        # It may be any object of the author.
        return {}
    if len(text) > MAX_DEFAULT_CHARS or _public(text) != text or SECRET_NAME.search(text):
        return {}
    return {"default": value}


def _doc_of(known: Any) -> str | None:
    doc = inspect.cleandoc(known.__doc__ or "") if isinstance(known.__doc__, str) else ""
    return _public(doc[:MAX_DOC_CHARS]) or None


def _public(text: str) -> str:
    return mask_text(presentable(text))


def _adapter_of(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except Exception:
        # horsies has types of its own.
        return TypeAdapter(Any)
