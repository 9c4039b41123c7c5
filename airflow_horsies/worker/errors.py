"""Exceptions become codes that a retry policy can name, and a message of a line or two."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_horsies.worker.masking import masked, presentable

MAX_MESSAGE_CHARS = 600
MORE_MEMORY = (
    "Give it more (spark.driver.memory, spark.executor.memory) or each task less (more partitions, no collect() of a "
    "large result)."
)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """
    :param retry_helps: whether another attempt may well succeed.
    :param meaning: for people.
    """

    retry_helps: bool
    meaning: str


ERROR_CODES = {
    "BAD_INPUT": ErrorCode(False, "The arguments are not those the task declares."),
    "SPARK_ANALYSIS_ERROR": ErrorCode(False, "A query names a column, table, path or function that is not there."),
    "SPARK_DATA_ERROR": ErrorCode(False, "A query met a value it cannot compute with: a cast, an overflow."),
    "SPARK_JOB_FAILED": ErrorCode(True, "A Spark job failed for a reason that has no code of its own."),
    "SPARK_SESSION_LOST": ErrorCode(True, "Spark's driver, its JVM or the Connect server died or did not start."),
    "SPARK_EXECUTOR_LOST": ErrorCode(True, "An executor was lost, or what it had computed could not be fetched."),
    "SPARK_OUT_OF_MEMORY": ErrorCode(False, "The driver or an executor ran out of memory."),
    "PYTHON_UDF_ERROR": ErrorCode(False, "A Python function that runs inside a query raised an exception."),
    "PYTHON_WORKER_LOST": ErrorCode(True, "The Python process of an executor died: killed, or out of memory."),
    "RESULT_NOT_JSON": ErrorCode(False, "The task returned something JSON cannot hold."),
    "RESULT_TOO_LARGE": ErrorCode(
        False, "The result is larger than a result may be; save_result() writes it elsewhere."
    ),
    "GOOD_UNTIL_PASSED": ErrorCode(False, "good_until passed while the task ran, which it asked to be stopped by."),
}
"""Besides horsies' own, such as TASK_TIMEOUT, WORKER_CRASHED and UNHANDLED_EXCEPTION for any other exception."""


class TaskFault(Exception):
    """
    Raise it to fail a task with a code of your own, which a retry policy can name.

    .. code-block:: python

        raise TaskFault("NO_DATA_YET", f"nothing has arrived for {day}")

    :param code: capital letters, digits and underscores.
    :param message: a sentence for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SparkLost(TaskFault):
    """There is no Spark session to be had; another attempt may find one."""

    def __init__(self, message: str) -> None:
        super().__init__("SPARK_SESSION_LOST", message)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a person is told."""

    code: str | None
    message: str


def describe(error: BaseException) -> Failure:
    """The code and the root cause; no code where the exception is the author's own."""
    if isinstance(error, TaskFault):
        return Failure(error.code, short(_said(error)))
    if not _is_of_spark(error):
        return Failure(None, short(f"{type(error).__name__}: {_said(error)}"))
    text = _full_text(error)
    known = _code_by_class(error) or ("PYTHON_UDF_ERROR" if PYTHON_TRACE.search(text) else None)
    if known == "PYTHON_UDF_ERROR":
        return Failure(known, short(_python_cause(text)))
    if known is not None:
        return Failure(known, short(_root_cause(text)))
    for code, pattern, message in SIGNS:
        found = pattern.search(text)
        if found:
            return Failure(code, short(message.format(found[0], cause=_root_cause(text))))
    return Failure("SPARK_JOB_FAILED", short(_root_cause(text)))


# What is looked for in what Spark says where the class of an exception says nothing, the most telling first.
SIGNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "SPARK_OUT_OF_MEMORY",
        re.compile(
            r"java\.lang\.OutOfMemoryError[^\n]*|UNABLE_TO_ACQUIRE_MEMORY|code 52\b|possible container OOM|OOMKilled"
            r"|killed by YARN for exceeding[^\n]*|bigger than spark\.driver\.maxResultSize[^\n]*"
        ),
        "Spark ran out of memory ({0}). " + MORE_MEMORY + " {cause}",
    ),
    (
        "PYTHON_WORKER_LOST",
        re.compile(r"Python worker exited unexpectedly[^\n]*|Python worker failed to connect back[^\n]*"),
        "The Python process of an executor died: killed, out of memory, or crashed in native code. {0}",
    ),
    (
        "SPARK_EXECUTOR_LOST",
        re.compile(
            r"ExecutorLostFailure[^\n]*|FetchFailed(?:Exception)?[^\n]*|Remote RPC client disassociated[^\n]*"
            r"|Lost executor [^\n]*"
        ),
        "An executor was lost while it computed. {0}",
    ),
    (
        "SPARK_SESSION_LOST",
        re.compile(
            r"stopped SparkContext|SparkContext was shut down|SparkContext has been shutdown|Py4JNetworkError[^\n]*"
            r"|Answer from Java side is empty|StatusCode\.UNAVAILABLE[^\n]*|INVALID_HANDLE\.SESSION_[A-Z]+"
            r"|NO_ACTIVE_SESSION|ConnectionRefusedError[^\n]*"
        ),
        "Spark went away while the task ran. {0}",
    ),
)
CODES_BY_CLASS = {
    "AnalysisException": "SPARK_ANALYSIS_ERROR",
    "ParseException": "SPARK_ANALYSIS_ERROR",
    "TempTableAlreadyExistsException": "SPARK_ANALYSIS_ERROR",
    "PythonException": "PYTHON_UDF_ERROR",
    "ArithmeticException": "SPARK_DATA_ERROR",
    "ArrayIndexOutOfBoundsException": "SPARK_DATA_ERROR",
    "DateTimeException": "SPARK_DATA_ERROR",
    "NumberFormatException": "SPARK_DATA_ERROR",
    "SparkNoSuchElementException": "SPARK_DATA_ERROR",
}
# In the text of a failed job: the executor's own exception stands behind where it ran.
TASK_FAILURE = re.compile(r"most recent failure: Lost task [^\n]*?\): (?P<cause>.+)")
JAVA_FRAME = re.compile(r"^\s+(?:at |\.\.\. \d+ more)")
JAVA_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z])")
PYTHON_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE)
PYTHON_TRACE = re.compile(r"PythonException: (?:An exception was thrown|Traceback)")
# Spark Connect sends the server's trace along.
CONNECT_TRACE = "JVM stacktrace:"
CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
NOT_TO_BE_HAD = "while it was asked what it says"
CALLED = re.compile(r"^An error occurred while calling \S+\.?$")


def _is_of_spark(error: BaseException) -> bool:
    kinds = (kind for each in _chain(error) for kind in type(each).__mro__)
    return any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in kinds)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those it was raised from; what it only came in the midst of is not its cause."""
    seen: set[int] = set()
    step: BaseException | None = error
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        yield step
        # py4j's own error is lost in the midst of those of the broken connection.
        context = step.__context__ if isinstance(step, OSError | EOFError) else None
        step = step.__cause__ or context


def _full_text(error: BaseException) -> str:
    return "\n".join(f"{type(each).__name__}: {_said(each)}" for each in _chain(error))


def _said(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception as broken:
        # Spark's exceptions ask the JVM what to say, and it may be gone.
        return f"{type(broken).__name__} {NOT_TO_BE_HAD}"


def _code_by_class(error: BaseException) -> str | None:
    return next(
        (CODES_BY_CLASS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in CODES_BY_CLASS), None
    )


def _python_cause(text: str) -> str:
    """``ValueError: no such day, in parse (tasks.py, line 12)``"""
    frames = list(PYTHON_FRAME.finditer(text))
    behind = text[frames[-1].end() :].partition("\n")[2] if frames else text.partition("\n")[2]
    said = [line for line in behind.splitlines() if line and not line[0].isspace()]
    if not frames:
        return said[-1] if said else _root_cause(text)
    last, error = frames[-1], said[0] if said else "an exception"
    return f"{error}, in {last['function']} ({last['file'].rpartition('/')[2]}, line {last['line']})"


def _root_cause(text: str) -> str:
    """The line that says most: the executor's exception, else the first one and the one behind all."""
    found = TASK_FAILURE.search(text)
    if found:
        return JAVA_CLASS.sub("", found["cause"].strip())
    first, causes = _first_said(text), CAUSED_BY.findall(text)
    root = JAVA_CLASS.sub("", causes[-1].strip()) if causes else first
    return first if root.partition(": ")[2] in first else f"{first} Because: {root}"


def _first_said(text: str) -> str:
    for line in text.partition(CONNECT_TRACE)[0].splitlines():
        said = line.partition(": ")[2].strip() if line.startswith(("Py4JJavaError", "SparkException")) else line.strip()
        if said and not JAVA_FRAME.match(line) and not CALLED.match(said):
            return JAVA_CLASS.sub("", said.removeprefix(": "))
    return "no reason was given"


def is_unfit_to_keep(error: BaseException) -> bool:
    """Whether its trace holds a secret, or something Postgres cannot hold, or cannot be had at all."""
    try:
        told = "".join(traceback.format_exception(error))
    except Exception:
        return True
    return presentable(told) != told or _said(error).endswith(NOT_TO_BE_HAD)


def first_line(error: BaseException) -> str:
    return masked((_said(error).splitlines() or [type(error).__name__])[0])


def short(text: str) -> str:
    """A line or two, fit to be kept and shown."""
    text = presentable(re.sub(r"\s+", " ", text).strip())
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"
