"""The pages of docs/reference, from the code; ``make docs`` writes them, and a test compares them with the code."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from airflow.cli.cli_config import GroupCommand
from horsies.core.models.tasks import BUILTIN_CODE_REGISTRY

from airflow_horsies.cli import get_cli_commands
from airflow_horsies.client.extras import LIBPQ_EXTRAS, OWN_EXTRAS
from airflow_horsies.decorators import horsies_task
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import RetryPolicy, TaskSpec
from airflow_horsies.notifications import HorsiesNotifier
from airflow_horsies.operators import (
    HorsiesBatchOperator,
    HorsiesCallbackOperator,
    HorsiesCancelOperator,
    HorsiesGraphOperator,
    HorsiesOperator,
    HorsiesSignalOperator,
    HorsiesWorkflowOperator,
)
from airflow_horsies.operators.base import FailOrSkip, HorsiesTaskOperator
from airflow_horsies.operators.outcomes import NON_RETRYABLE_CODES, WORKER_LOST_CODES
from airflow_horsies.operators.waiting import WaitingOperator
from airflow_horsies.operators.workflow import GraphOperator
from airflow_horsies.provider_info import CONFIG, CONNECTION_TYPE
from airflow_horsies.retry_policies import HorsiesRetryPolicy, Otherwise
from airflow_horsies.sensors import (
    HorsiesQueueSensor,
    HorsiesSensor,
    HorsiesWorkflowSensor,
    _DeferrableSensor,
    _WorkSensor,
)
from airflow_horsies.worker import (
    ERROR_CODES,
    Queue,
    TaskFault,
    checkpoint,
    horsies_app,
    last_checkpoint,
    mask,
    park_for,
    park_until,
    progress,
    python_task,
    receive,
    save_result,
    settings,
    signal_node,
    sleep_node,
    spark_task,
    workflow,
)
from tests.docs import error_texts
from tests.docs.blocks import DOCS

PACKAGE = Path(str(files("airflow_horsies")))
REFERENCE = DOCS / "reference"
NAMED_TYPES = {
    name: " | ".join(map(repr, get_args(kind)))
    for name, kind in {"FailOrSkip": FailOrSkip, "Otherwise": Otherwise}.items()
}

VARIABLES = {
    settings.DATABASE_URL: "horsies' database, as in `postgresql://user:password@host:5432/horsies`; needed",
    settings.DIRECT_DATABASE_URL: "the same past a pooler in transaction mode; see [PgBouncer](../how-to/pgbouncer.md)",
    settings.QUEUES: "the queues to serve, as `NAME:PRIORITY:MAX_RUNNING`, separated by commas; `default` if not set",
    settings.DEAD_AFTER_SECONDS: "a worker that gave no sign of life for so long is dead, and its tasks are recovered; "
    f"{settings.DEFAULT_DEAD_AFTER.total_seconds():.0f}. Every worker looks after all tasks of the database, so give "
    "all of them the same",
    settings.SPARK_MASTER: f"where Spark runs; `{settings.DEFAULT_MASTER}`; see "
    "[Spark clusters](../how-to/spark-clusters.md)",
    settings.SPARK_CONF: "Spark's settings, as a JSON object",
    settings.SPARK_HANG_SECONDS: f"a JVM that does not respond for so long is killed; {settings.DEFAULT_HANG_SECONDS}",
    settings.LOG_LINES: f"lines kept of an attempt; {settings.DEFAULT_LOG_LINES}",
    settings.LOG_BYTES: f"bytes kept of the lines of an attempt; {settings.DEFAULT_LOG_BYTES}",
    settings.LOG_AGE_SECONDS: "log lines older than this are removed, whatever became of their task; "
    f"{int(settings.DEFAULT_LOG_AGE.total_seconds())}, which are 14 days",
    settings.PRUNE_EVERY_SECONDS: "how often the workers together go through the airflow_horsies tables and remove "
    f"what nobody needs; {int(settings.DEFAULT_PRUNE_EVERY.total_seconds())}, never if 0",
    settings.PRUNE_AFTER_SECONDS: "records of a task that horsies no longer keeps are removed this long after it was "
    f"last heard of; {int(settings.PRUNE_AFTER.total_seconds())}",
    settings.RESULT_BYTES: f"how large the JSON of a result may be; {settings.DEFAULT_RESULT_BYTES}",
}
WRITTEN = "`make docs` writes this page from the code, and a test compares the two.\n"


def reference() -> dict[str, str]:
    """The text of every page, by its name."""
    return {name: "\n".join([*write(), ""]).rstrip() + "\n" for name, write in PAGES.items()}


def _index() -> Iterator[str]:
    yield "# Reference\n"
    yield "Every name this package gives you. `make docs` writes these pages from the code.\n"
    yield "| page | what it lists |\n|---|---|"
    yield _row(
        "[Operators and sensors](operators.md)", "operators, sensors, the decorator, the notifier, retry policies"
    )
    yield _row("[Hook](hook.md)", "the methods of `HorsiesHook`, `TaskSpec`, the connection")
    yield _row("[Worker](worker.md)", "what a module of tasks imports")
    yield _row("[Settings](settings.md)", "the settings of Airflow and the environment of a worker")
    yield _row("[Errors](errors.md)", "every error code and every exception, each with an anchor of its own")
    yield _row("[Command line](command-line.md)", "`airflow horsies` and its arguments")


def _operators() -> Iterator[str]:
    yield "# Operators and sensors\n"
    yield f"What DAG authors import, with every parameter. {WRITTEN}"
    yield (
        "Templated parameters may hold Jinja templates. Parameters of Airflow itself, such as `retries`, "
        "`execution_timeout` or `trigger_rule`, are not listed.\n"
    )
    yield "## Operators\n"
    yield "From `airflow_horsies.operators`.\n"
    yield from _class(HorsiesOperator)
    yield from _class(HorsiesBatchOperator)
    yield from _class(HorsiesCallbackOperator)
    yield "### Parameters of all\n"
    yield from _parameters(HorsiesTaskOperator, WaitingOperator)
    yield from _class(HorsiesWorkflowOperator, GraphOperator, WaitingOperator)
    yield from _class(HorsiesGraphOperator)
    yield from _class(HorsiesCancelOperator)
    yield from _class(HorsiesSignalOperator)
    yield (
        f"All that send tasks or workflows have the extra link `{HorsiesAttemptsLink.name}`, which leads to the "
        "attempts.\n"
    )
    yield "## Sensors\n"
    yield "From `airflow_horsies.sensors`.\n"
    yield from _class(HorsiesSensor, _WorkSensor, _DeferrableSensor)
    yield from _class(HorsiesWorkflowSensor, _WorkSensor, _DeferrableSensor)
    yield from _class(HorsiesQueueSensor, _DeferrableSensor)
    yield "## Decorator\n"
    yield from _function(horsies_task, "@task.horsies")
    yield "## Notifier\n"
    yield "From `airflow_horsies.notifications`.\n"
    yield from _class(HorsiesNotifier)
    yield "## Retry policies\n"
    yield "`RetryPolicy`, from `airflow_horsies.models`, decides when horsies runs a failed attempt again.\n"
    yield from _class(RetryPolicy)
    for factory in (RetryPolicy.fixed, RetryPolicy.exponential, RetryPolicy.parking, RetryPolicy.with_parking):
        yield f"`RetryPolicy.{factory.__name__}{_signature(factory)}`: {_summary(factory)}\n"
    yield "`HorsiesRetryPolicy`, from `airflow_horsies.retry_policies`, decides when Airflow does (3.3 and newer).\n"
    yield from _class(HorsiesRetryPolicy)


def _settings() -> Iterator[str]:
    yield "# Settings\n"
    yield f"The settings of Airflow, and the environment of a worker. {WRITTEN}"
    yield "## Settings of Airflow\n"
    yield "| setting | default | meaning |\n|---|---|---|"
    for section, held in CONFIG.items():
        for name, option in held["options"].items():
            default = "" if option["default"] is None else f"`{option['default']}`" if option["default"] else "empty"
            yield _row(f"`[{section}] {name}`", default, option["description"])
    yield ""
    yield "## Environment of a worker\n"
    known = {value for value in vars(settings).values() if isinstance(value, str) and value.startswith("HORSIES_")}
    if known != set(VARIABLES):
        raise ValueError(f"settings without a meaning: {known ^ set(VARIABLES)}")
    yield "| variable | meaning |\n|---|---|"
    for name, meaning in VARIABLES.items():
        yield _row(f"`{name}`", meaning)


def _command_line() -> Iterator[str]:
    yield "# Command line\n"
    yield f"The commands of `airflow horsies`; on Airflow 3.1, of `python -m airflow_horsies.cli`. {WRITTEN}"
    for group in get_cli_commands():
        yield from _commands(f"airflow {group.name}", group.subcommands)


# -- classes and functions -----------------------------------------------------------------------------------------


def _class(cls: type, *bases: type) -> Iterator[str]:
    yield f"### {cls.__name__}\n"
    yield f"{_summary(cls)}\n"
    yield from _parameters(cls, *bases)


def _function(function: Callable[..., Any], name: str) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{_summary(function)}\n"
    yield from _parameters(function)


def _parameters(owner: Any, *bases: type) -> Iterator[str]:
    """A table of parameters; one without a ``:param`` is an error."""
    told = _param_docs(owner)
    templated = {name.removeprefix("task_") for name in getattr(owner, "template_fields", ())}
    templated |= set(getattr(owner, "template_fields", ()))
    if "horsies_retry_policy" in templated and "retry_policy" not in templated:
        templated.add("retry_policy")
    if "horsies_queue" in templated:
        templated.add("queue")
    rows = []
    for name, annotation, default in [each for one in (owner, *bases) for each in _signature_of(one)]:
        if name not in told:
            raise ValueError(f"{getattr(owner, '__qualname__', owner)}: the parameter {name} has no :param")
        shown = f"`{name}`, templated" if name in templated else f"`{name}`"
        rows.append(_row(shown, _type(annotation), _default(name, default), told.pop(name)))
    inherited = {
        name for base in getattr(owner, "__mro__", ())[1:] if "__init__" in vars(base) for name in _names_of(base)
    }
    if set(told) - inherited:
        raise ValueError(f"{owner.__qualname__}: :param of no parameter: {sorted(set(told) - inherited)}")
    if rows:
        yield "| parameter | type | default | meaning |\n|---|---|---|---|"
        yield from rows
        yield ""


def _signature_of(owner: Any) -> Iterator[tuple[str, str, Any]]:
    if "__dataclass_fields__" in vars(owner):
        for field in fields(owner):
            factory = field.default_factory
            yield (
                field.name,
                str(field.type),
                factory()
                if factory is not MISSING
                else inspect.Parameter.empty
                if field.default is MISSING
                else field.default,
            )
        return
    function = inspect.unwrap(vars(owner)["__init__"]) if isinstance(owner, type) else owner
    # From the function as it was written: Airflow gives the initialisers of operators another signature.
    code, annotations = function.__code__, function.__annotations__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARKEYWORDS)]
    positional = names[: code.co_argcount]
    defaults = dict(zip(reversed(positional), reversed(function.__defaults__ or ()), strict=False))
    defaults |= function.__kwdefaults__ or {}
    for name in names:
        if name not in ("self", "base"):
            yield name, annotations[name], defaults.get(name, inspect.Parameter.empty)


def _names_of(base: type) -> set[str]:
    return {name for name, _, _ in _signature_of(base)} if base.__module__.startswith("airflow_horsies.") else set()


def _param_docs(owner: Any) -> dict[str, str]:
    text = inspect.cleandoc(owner.__doc__ or "")
    return {
        name: _plain(" ".join(told.split()))
        for name, told in re.findall(r"^:param (\w+): (.*?)(?=^:param |\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    }


def _summary(owner: Any) -> str:
    """What stands before the example and the parameters."""
    begins = r"^\.\. code-block|^:param |^Further parameters"
    text = re.split(begins, inspect.cleandoc(owner.__doc__ or ""), flags=re.MULTILINE)[0]
    return _plain(text.strip())


def _signature(function: Callable[..., Any]) -> str:
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    ]
    return str(inspect.Signature(parameters)).replace("frozenset({", "{").replace("})", "}")


def _plain(text: str) -> str:
    """Markdown for what docstrings write."""
    text = re.sub(r":(?:class|meth|func):`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def _type(annotation: str) -> str:
    return f"`{NAMED_TYPES.get(annotation, annotation)}`"


def _default(name: str, default: Any) -> str:
    if default is inspect.Parameter.empty:
        return ""
    if name == "deferrable":
        return "`[operators] default_deferrable`"
    if isinstance(default, tuple):
        return f"`{[str(each) for each in default]}`"
    return f"`{default!r}`".replace("datetime.", "")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# -- the rest --------------------------------------------------------------------------------------------------------


def _hook() -> Iterator[str]:
    yield "# Hook\n"
    yield f"The hook, what it sends, and the connection behind it. {WRITTEN}"
    yield "## HorsiesHook\n"
    yield "`HorsiesHook(horsies_conn_id)`, from `airflow_horsies.hook`. Every method has an example in its docstring.\n"
    yield "| method | what it does |\n|---|---|"
    for name, method in inspect.getmembers(HorsiesHook, inspect.isfunction):
        if not name.startswith("_") and method.__module__.startswith("airflow_horsies.") and method.__doc__:
            first = " ".join(_summary(method).partition("\n\n")[0].split())
            awaited = "await " if inspect.iscoroutinefunction(method) else ""
            yield _row(f"`{awaited}{name}`", first)
    yield ""
    yield "## TaskSpec\n"
    yield f"{_summary(TaskSpec)}\n"
    yield from _parameters(TaskSpec)
    yield "## Connection\n"
    yield from _connection()


def _connection() -> Iterator[str]:
    yield (
        "A connection of type `horsies`: host, port, login, password and database as for Postgres. "
        "Its extra may hold:\n"
    )
    yield "| key | meaning |\n|---|---|"
    described = CONNECTION_TYPE["conn-fields"]
    if set(described) != OWN_EXTRAS:
        raise ValueError(f"not described in the connection form: {OWN_EXTRAS ^ set(described)}")
    for name, field in described.items():
        yield _row(f"`{name}`", field.get("description") or field["label"])
    yield _row(", ".join(f"`{name}`" for name in sorted(LIBPQ_EXTRAS)), "handed to libpq as they are")
    yield ""


def _worker() -> Iterator[str]:
    yield "# Worker\n"
    yield f"What a module of tasks imports from `airflow_horsies.worker`. {WRITTEN}"
    yield "`python -m airflow_horsies.worker MODULE:APP` starts a worker.\n"
    yield from _function(horsies_app, "horsies_app")
    yield from _class(Queue)
    yield from _function(spark_task, "@spark_task")
    yield from _function(python_task, "@python_task")
    yield from _function(workflow, "@workflow")
    yield from _function(save_result, "save_result")
    yield from _function(progress, "progress")
    for function in (receive, park_until, park_for, checkpoint, last_checkpoint, signal_node, sleep_node):
        yield from _function(function, function.__name__)
    yield from _function(mask, "mask")
    yield from _class(TaskFault)
    yield "`ResultReference` is what `save_result` returns. `ERROR_CODES` holds the [codes](errors.md) of workers.\n"


def _errors() -> Iterator[str]:
    yield "# Errors\n"
    yield (
        "Every error code and every exception. A failed horsies task has an *error code*, which a retry policy can "
        "name. Python code that uses this package meets an *exception*. Each has an anchor here: its name in lower "
        f"case. {WRITTEN}"
    )
    yield "## Codes of the worker\n"
    yield (
        "A task fails with a code of its own by `raise TaskFault(code, message)`. Any other exception of the function "
        "has horsies' code [UNHANDLED_EXCEPTION](#unhandled_exception), unless an `exception_mapper` names another. "
        "The message is the root cause in a line or two; the whole trace is in the log of the attempt.\n"
    )
    _require_same("code of the worker", ERROR_CODES, error_texts.WORKER_CODES)
    for code, known in ERROR_CODES.items():
        yield from _code(code, known.meaning, error_texts.WORKER_CODES[code], retry_helps=known.retry_helps)
    yield "## Codes of horsies\n"
    yield "Some of them are for workflows, or for callers of horsies' own client, and no operator meets them.\n"
    codes = sorted(str(getattr(code, "value", code)) for code in BUILTIN_CODE_REGISTRY)
    _require_same("code of horsies", codes, error_texts.HORSIES_CODES)
    for code in codes:
        yield from _code(code, *error_texts.HORSIES_CODES[code])
    yield "## Exceptions\n"
    yield "They are in `airflow_horsies.exceptions`, unless another module is named.\n"
    yield from _tree("HorsiesError", list(_error_classes()), None)


def _code(code: str, meaning: str, next_step: str, *, retry_helps: bool | None = None) -> Iterator[str]:
    yield f"### {code}\n"
    yield f"{meaning} {next_step}\n"
    said = [] if retry_helps is None else [f"Another attempt may succeed: {_yes(retry_helps)}."]
    if code in WORKER_LOST_CODES:
        said.append("The Airflow task fails with [WorkerLost](#workerlost).")
    if code in NON_RETRYABLE_CODES:
        said.append("Airflow does not try again: the task fails with [TaskFailedForGood](#taskfailedforgood).")
    elif retry_helps is not None:
        said.append("Airflow tries again, if the task has `retries`.")
    if said:
        yield " ".join(said) + "\n"


def _require_same(what: str, known: Iterable[str], described: Iterable[str]) -> None:
    if set(known) != set(described):
        raise ValueError(f"tests/docs/error_texts.py: not described, or no {what}: {set(known) ^ set(described)}")


def _error_classes() -> Iterator[tuple[str, str, list[str], str]]:
    """Module, name, bases and docstring of every class that may be an exception; read, not imported."""
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.name != "exceptions.py", path)):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if "embedded" not in module:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                    yield module, node.name, bases, (ast.get_docstring(node) or "").partition("\n\n")[0]


def _tree(kind: str, classes: list[tuple[str, str, list[str], str]], parent: str | None) -> Iterator[str]:
    """An exception and those below it."""
    (module, text) = next((module, text) for module, name, _, text in classes if name == kind)
    yield f"### {kind}\n"
    where = [] if module == "airflow_horsies.exceptions" else [f"From `{module}`."]
    above = [] if parent is None else [f"A [{parent}](#{parent.lower()})."]
    yield " ".join([_plain(" ".join(text.split())), *above, *where]) + "\n"
    for _, name, bases, _ in classes:
        if bases and bases[0] == kind:
            yield from _tree(name, classes, kind)


def _commands(prefix: str, commands: Iterable[Any]) -> Iterator[str]:
    for command in commands:
        if isinstance(command, GroupCommand):
            yield from _commands(f"{prefix} {command.name}", command.subcommands)
            continue
        yield f"### {prefix} {command.name}\n"
        yield f"{command.help}.\n"
        yield "| argument | meaning |\n|---|---|"
        for arg in command.args:
            options = arg.kwargs
            shown = options.get("metavar") or ""
            flags = ", ".join(f"`{flag}`" for flag in arg.flags if flag.startswith("-"))
            yield _row(flags or f"`{shown}`", _help(arg.flags, options))
        yield ""


def _help(flags: Iterable[str], options: dict[str, Any]) -> str:
    # These are Airflow's own, and differ between its releases.
    if "--output" in flags:
        return "`table` (the default), `json`, `yaml` or `plain`"
    if "--verbose" in flags:
        return "Make logging output more verbose"
    told = str(options.get("help", "")).replace(argparse.SUPPRESS, "")
    return f"{told}; needed" if options.get("required") else told


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "index.md": _index,
    "operators.md": _operators,
    "hook.md": _hook,
    "worker.md": _worker,
    "settings.md": _settings,
    "errors.md": _errors,
    "command-line.md": _command_line,
}
