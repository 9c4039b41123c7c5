"""Exceptions become codes that a retry policy can name, and a message of a line or two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_horsies.worker.masking import masked

MAX_MESSAGE_CHARS = 600


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
    """An error of which code and message are known."""

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
        return Failure(error.code, _short(str(error)))
    if not _is_of_spark(error):
        return Failure(None, _short(f"{type(error).__name__}: {error}"))
    text = _full_text(error)
    for code, pattern, message in SIGNS:
        found = pattern.search(text)
        if found:
            return Failure(code, _short(message.format(found[0], cause=_root_cause(text))))
    return Failure(_code_by_class(error), _short(_message(error, text)))


# What is looked for in what Spark says, the most telling first; {0} is what was found.
SIGNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "SPARK_OUT_OF_MEMORY",
        re.compile(
            r"java\.lang\.OutOfMemoryError: [^\n]*|UNABLE_TO_ACQUIRE_MEMORY|exit code 52|exitCode=52|exit code 137"
            r"|OOMKilled|killed by YARN for exceeding|spark\.driver\.maxResultSize"
        ),
        "Spark ran out of memory ({0}). Give it more (spark.driver.memory, spark.executor.memory) or each task less "
        "(more partitions, no collect() of a large result). {cause}",
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
            r"stopped SparkContext|SparkContext was shut down|SparkContext has been shutdown"
            r"|Py4JNetworkError[^\n]*|Error while (?:sending|receiving)[^\n]*|Answer from Java side is empty"
            r"|StatusCode\.UNAVAILABLE[^\n]*|Connection refused|INVALID_HANDLE\.SESSION_[A-Z]+|NO_ACTIVE_SESSION"
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
PYTHON_ERROR = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*)$", re.MULTILINE)
CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
CALLED = re.compile(r"^An error occurred while calling \S+\.?$")


def _is_of_spark(error: BaseException) -> bool:
    return any(
        kind.__module__.startswith(("pyspark.", "py4j.", "grpc"))
        for each in _chain(error)
        for kind in type(each).__mro__
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    step: BaseException | None = error
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        yield step
        step = step.__cause__ or (None if step.__suppress_context__ else step.__context__)


def _full_text(error: BaseException) -> str:
    """What it says, and what Java says behind it."""
    parts = [f"{type(each).__name__}: {str(each).strip()}" for each in _chain(error)]
    trace = getattr(error, "getStackTrace", None)
    if callable(trace):
        try:
            parts.append(str(trace() or ""))
        except Exception:
            # A JVM that is gone cannot be asked.
            parts.append("")
    return "\n".join(parts)


def _code_by_class(error: BaseException) -> str:
    for kind in type(error).__mro__:
        code = CODES_BY_CLASS.get(kind.__name__)
        if code is not None:
            return code
    return "SPARK_JOB_FAILED"


def _message(error: BaseException, text: str) -> str:
    if _code_by_class(error) == "PYTHON_UDF_ERROR":
        return _python_cause(str(error)) or _root_cause(text)
    return _root_cause(text)


def _python_cause(text: str) -> str | None:
    """``ValueError: no such day, in parse (tasks.py, line 12)``"""
    errors = PYTHON_ERROR.findall(text)
    frames = list(PYTHON_FRAME.finditer(text))
    if not errors:
        return None
    if not frames:
        return str(errors[-1])
    last = frames[-1]
    return f"{errors[-1]}, in {last['function']} ({last['file'].rpartition('/')[2]}, line {last['line']})"


def _root_cause(text: str) -> str:
    """The line that says most: the executor's exception, else the first one and the one behind all."""
    found = TASK_FAILURE.search(text)
    if found:
        return JAVA_CLASS.sub("", found["cause"].strip())
    first, causes = _first_said(text), CAUSED_BY.findall(text)
    root = JAVA_CLASS.sub("", causes[-1].strip()) if causes else first
    return first if root.partition(": ")[2] in first else f"{first} Because: {root}"


def _first_said(text: str) -> str:
    for line in text.splitlines():
        said = line.partition(": ")[2].strip() if line.startswith(("Py4JJavaError", "SparkException")) else line.strip()
        if said and not JAVA_FRAME.match(line) and not CALLED.match(said):
            return JAVA_CLASS.sub("", said.removeprefix(": "))
    return "no reason was given"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _short(text: str) -> str:
    text = masked(re.sub(r"\s+", " ", text).strip())
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"
