"""Tasks that need no worker: the triggerer starts and ends them. What they must not use, and what they take along."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from airflow import __version__ as airflow_version
from airflow.providers.common.compat.sdk import XComArg
from airflow.triggers.base import StartTriggerArgs
from jinja2 import StrictUndefined
from packaging.version import Version

from airflow_horsies.borrowed.airflow import is_from_mapped, task_listeners, template_env
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.operators.rendering import is_final
from airflow_horsies.operators.templates import explain_template

NEEDED_AIRFLOW = Version("3.3")
# Airflow keeps the arguments in the serialized DAG, and sends it to the triggerer with each task.
MAX_FIELDS_BYTES = 1024 * 1024
INSTEAD = "Set deferrable=True instead of worker_free=True"
FAILED_BY_TRIGGERER = "__fail__"
START_TRIGGER = "airflow_horsies.operators.starting.HorsiesStartTrigger"
# The parameters that a triggerer needs to wait, and to send a task.
WAITING_FIELDS = (
    "horsies_queue",
    "priority",
    "good_until",
    "wait_for_completion",
    "cancel_on_kill",
    "queue_timeout",
    "show_logs",
    "horsies_conn_id",
)
START_FIELDS = (
    *WAITING_FIELDS,
    "task_name",
    "horsies_retry_policy",
    "delay",
    "timeout",
    "retention",
    "retain_input",
)


class _StartArgs:
    """Made whenever Airflow asks, so that what was set after the operator was created is checked, too."""

    def __get__(self, task: WorkerFree | None, owner: type[WorkerFree]) -> StartTriggerArgs | None:
        if task is None or not task.start_from_trigger:
            return None
        return task._make_start_args()


class WorkerFree:
    """A task whose author may choose that the triggerer starts it and, if it succeeds, ends it."""

    worker_free: bool
    start_from_trigger: bool
    start_trigger_args: ClassVar[Any] = _StartArgs()
    start_trigger: ClassVar[str]

    @classmethod
    def partial(cls, **given: Any) -> Any:
        made = super().partial(**given)  # type: ignore[misc]
        defaults = getattr(made.kwargs.get("dag"), "default_args", None) or {}
        if made.kwargs.get("worker_free", defaults.get("worker_free")):
            # Airflow warns otherwise that nobody called expand().
            made._expand_called = True
            raise InvalidTask(
                "worker_free",
                "is not possible for a mapped task, because Airflow starts mapped tasks on a worker. Use "
                f"HorsiesBatchOperator for many items, or leave partial() out. {INSTEAD}",
            )
        return made

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        if self.start_from_trigger and next_method == FAILED_BY_TRIGGERER:
            return self._resume_failed(next_kwargs or {}, context)
        return super().resume_execution(next_method, next_kwargs, context)  # type: ignore[misc]

    def _start_fields(self) -> dict[str, Any]:
        """The arguments with which the triggerer creates the operator again."""
        raise NotImplementedError

    def _resume_failed(self, next_kwargs: Mapping[str, Any], context: Any) -> Any:
        """The trigger failed, or Airflow gave it up because its time was over."""
        raise NotImplementedError

    def _start_timeout(self) -> timedelta | None:
        return None

    def _start_from_trigger(self) -> None:
        """For the end of ``__init__``: Airflow asks for the arguments of the trigger right after it."""
        # A mapped task runs on a worker.
        self.start_from_trigger = self.worker_free and not is_from_mapped(self)
        if self.start_from_trigger:
            self._make_start_args()

    def _make_start_args(self) -> StartTriggerArgs:
        fields = self._start_fields()
        problem = next(_problems(self, fields), None)
        if problem is not None:
            raise InvalidTask("worker_free", f"is not possible: {problem}")
        return StartTriggerArgs(
            trigger_cls=self.start_trigger,
            trigger_kwargs={"fields": encode_fields({**fields, "native": _is_native(self)})},
            next_method="execute_complete",
            next_kwargs=None,
            timeout=self._start_timeout(),
        )


def encode_fields(fields: Mapping[str, Any]) -> str:
    """One text, which no layer between the DAG and the trigger changes."""
    text = json.dumps({name: _plain(value) for name, value in fields.items()}, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_FIELDS_BYTES:
        raise InvalidTask(
            "worker_free",
            f"is not possible: the arguments take {len(text):,} bytes, more than the {MAX_FIELDS_BYTES:,} that fit "
            f"into a DAG. Read them from the run's conf or a Variable by a template. {INSTEAD}",
        )
    return text


def decode_fields(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    return {name: _timed(value) if name in TIMES else value for name, value in fields.items()}


TIMES = frozenset({"good_until", "delay", "timeout", "queue_timeout"})


def _plain(value: Any) -> Any:
    match value:
        case timedelta():
            return {"seconds": value.total_seconds()}
        case datetime():
            return {"instant": value.isoformat()}
    return value


def _timed(value: Any) -> Any:
    match value:
        case {"seconds": seconds}:
            return timedelta(seconds=seconds)
        case {"instant": instant}:
            return datetime.fromisoformat(instant)
    return value


def _problems(task: Any, fields: Mapping[str, Any]) -> Iterator[str]:
    """Reasons why the triggerer cannot run a task as a worker would, each with what to do."""
    if Version(Version(airflow_version).base_version) < NEEDED_AIRFLOW:
        yield f"it needs Airflow {NEEDED_AIRFLOW} or newer, and this is {airflow_version}. {INSTEAD}"
    for is_set, what in _unsupported(task):
        if is_set:
            yield f"{what}. Remove it, or set deferrable=True instead of worker_free=True"
    dag = task.get_dag()
    env = template_env()
    filters = frozenset(getattr(dag, "user_defined_filters", None) or ())
    for name, value in fields.items():
        yield from _problems_of_value(value if name not in TIMES else _plain(value), name, env, filters)


def _unsupported(task: Any) -> Iterator[tuple[bool, str]]:
    """What Airflow does on a worker only, or when it queues a task."""
    dag = task.get_dag()
    yield (
        "start_trigger" not in vars(type(task)),
        f"{type(task).__name__} has code of its own, which runs on a worker only",
    )
    yield bool(task.outlets), "it has outlets, and Airflow emits asset events on a worker only"
    yield bool(task.on_execute_callback), "it has an on_execute_callback, which runs on a worker only"
    yield bool(task.on_success_callback), "it has an on_success_callback, which runs on a worker only"
    yield task._pre_execute_hook is not None, "it has a pre_execute hook, which runs on a worker only"
    yield task._post_execute_hook is not None, "it has a post_execute hook, which runs on a worker only"
    yield task.pool != "default_pool" or task.pool_slots != 1, "it has a pool, which only a task that is queued takes"
    yield (
        task.max_active_tis_per_dag is not None or task.max_active_tis_per_dagrun is not None,
        "it limits max_active_tis_per_dag or max_active_tis_per_dagrun, which only a task that is queued keeps",
    )
    yield bool(getattr(task, "returns_dag_result", False)), "its value is the result of the DAG, which a worker stores"
    yield task.get_closest_mapped_task_group() is not None, "it is in a mapped task group"
    yield (
        bool(getattr(dag, "jinja_environment_kwargs", None))
        or getattr(dag, "template_undefined", StrictUndefined) is not StrictUndefined,
        "its DAG sets jinja_environment_kwargs or template_undefined, which a triggerer does not have",
    )
    listeners = ", ".join(task_listeners())
    yield bool(listeners), f"the plugin {listeners} listens to tasks, which Airflow reports on a worker only"


def _problems_of_value(value: Any, path: str, env: Any, filters: frozenset[str]) -> Iterator[str]:
    match value:
        case float() if not math.isfinite(value):
            yield f"{path} is {value!r}, which JSON cannot represent. Pass None or a string"
        case None | bool() | int() | float():
            return
        case str():
            problem = None if is_final(value) else explain_template(value, env, filters)
            if problem is not None:
                yield f"the template in {path} {problem}. {INSTEAD}"
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    yield f"{path} has the key {key!r}. Use strings as keys"
                yield from _problems_of_value(item, f"{path}.{key}", env, filters)
        case list() | tuple():
            for number, item in enumerate(value):
                yield from _problems_of_value(item, f"{path}[{number}]", env, filters)
        case XComArg():
            yield f"{path} is the output of another task, which a triggerer cannot read. {INSTEAD}"
        case _:
            yield f"{path} is of type {type(value).__name__}, which JSON cannot represent. Pass a JSON value"


def _is_native(task: Any) -> bool:
    """Whether templates render to Python values; an operator may override its DAG."""
    given = getattr(task, "render_template_as_native_obj", None)
    return bool(getattr(task.get_dag(), "render_template_as_native_obj", False) if given is None else given)
