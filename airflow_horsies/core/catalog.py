"""What workers can run: the tasks and workflows they know, and the parameters of each."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_horsies.core.chunk import CHUNK_SUFFIX, ITEMS
from airflow_horsies.core.control import OWN_PREFIX
from airflow_horsies.core.parameters import describe_parameters, find_problems, suggest
from airflow_horsies.exceptions import TaskRefused

MAX_SHOWN_NAMES = 20
MAX_SHOWN_PROBLEMS = 10
# Of what is sent at once: workers check everything.
MAX_CHECKED_BYTES = 1_000_000
MAX_CHECKED_ITEMS = 1_000


class KnownKind(StrEnum):
    """What a worker knows under a name."""

    TASK = "task"
    WORKFLOW = "workflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTask:
    """
    A task or a workflow that workers have recorded.

    :param kind: ``task`` or ``workflow``.
    :param name: the name that operators use.
    :param parameters: a JSON schema of the keyword arguments.
    :param doc: the first lines of the docstring.
    :param queue: the queue of the task's decorator; None for the default one.
    :param served_queues: the queues that these workers serve.
    :param workers: how many workers have recorded exactly this.
    :param releases: their releases of airflow-horsies.
    :param hosts: the hosts of some of them.
    :param seen_at: when the last of them reported.
    :param is_live: whether it did so in the last minutes.
    :param is_disputed: whether other live workers have recorded other parameters under this name.
    """

    kind: KnownKind
    name: str
    parameters: Mapping[str, Any]
    doc: str | None
    queue: str | None
    served_queues: tuple[str, ...]
    workers: int
    releases: tuple[str, ...]
    hosts: tuple[str, ...]
    seen_at: datetime
    is_live: bool
    is_disputed: bool = False

    @property
    def signature(self) -> str:
        """The parameters in one line: ``path: string, rows: integer = 5``."""
        return describe_parameters(self.parameters)


def mark_disputed(known: Sequence[KnownTask]) -> list[KnownTask]:
    """Find the names for which live workers have recorded different parameters."""
    schemas: dict[tuple[str, str], set[str]] = {}
    for entry in known:
        if entry.is_live:
            text = json.dumps(entry.parameters, sort_keys=True)
            schemas.setdefault((entry.kind, entry.name), set()).add(text)
    return [replace(entry, is_disputed=entry.is_live and len(schemas[entry.kind, entry.name]) > 1) for entry in known]


@dataclass(frozen=True, slots=True)
class Request:
    """
    Something that is about to be sent: a task, a chunk of items of it, or a workflow.

    :param kwargs: its arguments as JSON.
    """

    queue: str
    task_name: str
    kwargs: str | None
    kind: KnownKind = KnownKind.TASK

    @property
    def name(self) -> str:
        """The name that workers record."""
        return self.task_name.removesuffix(CHUNK_SUFFIX)

    @property
    def is_checked(self) -> bool:
        return not self.name.startswith(OWN_PREFIX)

    def arguments(self) -> Iterable[Mapping[str, Any]]:
        """Those of the task, or of its first items."""
        given = json.loads(self.kwargs) if self.kwargs else {}
        if not self.task_name.endswith(CHUNK_SUFFIX):
            return [given]
        return [item for item in given.get(ITEMS, ())[:MAX_CHECKED_ITEMS] if isinstance(item, Mapping)]


@dataclass(frozen=True, slots=True)
class Spoken:
    """
    What live workers have recorded of some names.

    :param queues: the queues for which any of them has.
    :param schemas: the recorded parameters by queue and name.
    """

    queues: frozenset[str] = frozenset()
    schemas: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = field(default_factory=dict)


def find_refused(requests: Iterable[Request], spoken: Spoken) -> Request | None:
    """The first request that each worker that has spoken for its queue would refuse."""
    size = 0
    for request in requests:
        if not request.is_checked or request.queue not in spoken.queues:
            continue
        schemas = spoken.schemas.get((request.queue, request.name), ())
        if not schemas:
            return request
        size += len(request.kwargs or "")
        if size <= MAX_CHECKED_BYTES and not accepts(schemas, request):
            return request
    return None


def accepts(schemas: Collection[Mapping[str, Any]], request: Request) -> bool:
    """Whether at least one of the workers accepts the arguments."""
    return any(all(not find_problems(schema, given) for given in request.arguments()) for schema in schemas)


def make_refusal(request: Request, schemas: Sequence[Mapping[str, Any]], names: Iterable[str]) -> TaskRefused:
    """
    The error of a request that no live worker accepts.

    :param schemas: the recorded parameters of its name.
    :param names: all names that live workers of the queue have recorded.
    """
    kind, queue, name = request.kind, request.queue, request.name
    if not schemas:
        field = "task_name" if kind is KnownKind.TASK else "workflow"
        return TaskRefused(field, describe_unknown(kind, name, queue, names))
    problems = _problems_of(schemas[0], request)
    shown = "; ".join(problems[:MAX_SHOWN_PROBLEMS])
    return TaskRefused(
        "kwargs",
        f"the arguments of the {kind} {name!r} do not match its parameters on the live workers of queue {queue!r}: "
        f"{shown}. The parameters are ({describe_parameters(schemas[0])}). Nothing was sent. Correct the arguments in "
        f"the DAG, or restart the workers with the version of the {kind} that has these parameters",
    )


def describe_unknown(kind: str, name: str, queue: str, names: Iterable[str]) -> str:
    """That no live worker of a queue knows a name, and which names they know."""
    known = sorted({known for known in names if not known.startswith(OWN_PREFIX)})
    rest = f" and {len(known) - MAX_SHOWN_NAMES} more" if len(known) > MAX_SHOWN_NAMES else ""
    listed = f"They know {', '.join(known[:MAX_SHOWN_NAMES])}{rest}" if known else f"They know no {kind}s"
    return (
        f"no live worker of queue {queue!r} knows the {kind} {name!r}{suggest(name, known)}. {listed}. Nothing was "
        "sent. Correct the name or the queue, or restart the workers with the module that defines it"
    )


def _problems_of(schema: Mapping[str, Any], request: Request) -> list[str]:
    if not request.task_name.endswith(CHUNK_SUFFIX):
        return [problem for given in request.arguments() for problem in find_problems(schema, given)]
    return [
        f"item {number}: {problem}"
        for number, given in enumerate(request.arguments())
        for problem in find_problems(schema, given)
    ]
