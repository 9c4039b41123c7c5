"""Convert what a DAG author passes, or a template renders, to the values of a task."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from airflow.providers.common.compat.sdk import Context

from airflow_horsies.core.graph import Ref
from airflow_horsies.core.spec import RetryPolicy, TaskSpec
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.exceptions import InvalidTask

DAG_RUN_DEADLINE = "dag_run_deadline"


def plain_policy(policy: RetryPolicy | Mapping[str, Any] | None) -> Any:
    """Plain values, so that the policy can be templated and shown."""
    if not isinstance(policy, RetryPolicy):
        return policy
    values = {name: getattr(policy, name) for name in policy.__dataclass_fields__}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def policy_of(values: Any) -> RetryPolicy | None:
    return values if values is None or isinstance(values, RetryPolicy) else RetryPolicy.from_mapping(values)


def is_final(value: Any) -> bool:
    """Whether a value contains no template."""
    match value:
        case str():
            return "{{" not in value and "{%" not in value
        case Mapping():
            return all(map(is_final, value.values()))
        case list() | tuple():
            return all(map(is_final, value))
        case None | bool() | int() | float() | datetime() | timedelta():
            return True
    return False


def validate_untemplated(**fields: Any) -> None:
    """Check the values that contain no template when the DAG is parsed.

    :param fields: the fields of a TaskSpec; None is ignored.
    """
    given = {name: value for name, value in fields.items() if value is not None and is_final(value)}
    if "retry_policy" in given:
        given["retry_policy"] = policy_of(given["retry_policy"])
    TaskSpec(**{"task_name": "to be rendered", **given})


def validate_json(name: str, value: Any) -> None:
    """Check when the DAG is parsed that arguments can become JSON. What Airflow or a template resolves later is left
    out.

    :param name: what contains them, for the message.
    """
    match value:
        case Ref():
            problem = f"contains ref({value.node!r}). A reference must be a whole argument of node()"
        case set() | frozenset() | bytes() | bytearray() | date() | time() | timedelta() | Decimal() | complex():
            problem = f"is of type {type(value).__name__}, which JSON cannot represent. Pass text, a number or a list"
        case float() if not isfinite(value):
            problem = f"is {value!r}, which JSON cannot represent. Pass None or a string"
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidTask(name, f"has the key {key!r}. Use strings as keys")
                validate_json(f"{name}.{key}", item)
            return
        case list() | tuple():
            for number, item in enumerate(value):
                validate_json(f"{name}[{number}]", item)
            return
        case _:
            return
    raise InvalidTask(name, problem)


def integer(name: str, value: Any) -> int:
    """A template renders to text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, str):
            return int(value)
    except ValueError:
        pass
    raise InvalidTask(name, f"must be an integer, not {value!r}")


def duration(name: str, value: Any) -> timedelta | None:
    if isinstance(value, str):
        try:
            return timedelta(seconds=float(value))
        except ValueError:
            raise InvalidTask(name, f"must be a timedelta or a number of seconds, not {value!r}") from None
    return value if value is None or isinstance(value, timedelta) else timedelta(seconds=float(value))


def instant(value: Any, context: Context) -> datetime | None:
    """The instant at which a task expires, from any of the forms that an author may use."""
    if value is None or isinstance(value, datetime):
        return value
    if isinstance(value, timedelta):
        return datetime.now(UTC) + value
    if value == DAG_RUN_DEADLINE:
        return _dag_run_deadline(context)
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise InvalidTask(
            "good_until", f"must be a datetime, a timedelta, an ISO time or {DAG_RUN_DEADLINE!r}, not {value!r}"
        ) from None


def _dag_run_deadline(context: Context) -> datetime:
    dagrun_timeout = context["dag"].dagrun_timeout
    started = context["dag_run"].start_date
    if dagrun_timeout is None or started is None:
        raise InvalidTask(
            "good_until",
            f"is {DAG_RUN_DEADLINE!r}, but DAG {context['dag'].dag_id} has no dagrun_timeout. Set one, or give a "
            "timedelta",
        )
    deadline: datetime = started + dagrun_timeout
    return deadline


def task_ids_of(value: Any, name: str = "task_ids") -> list[str]:
    """Ids as an author passes them or a template renders them: one id, a list, or the text of a list.

    :param name: of the parameter, for a message.
    """
    noun = name.removesuffix("_ids")
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            raise InvalidTask(name, f"must be a list of {noun} ids, not {value[:200]!r}") from None
    if isinstance(value, str):
        value = [value.strip()]
    if not isinstance(value, Iterable) or isinstance(value, Mapping | bytes):
        raise InvalidTask(name, f"must be the id of a horsies {noun} or a list of ids, not {value!r}")
    return list(dict.fromkeys(require_task_id(one) for one in value))
