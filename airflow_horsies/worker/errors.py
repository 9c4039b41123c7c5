"""Maps exceptions to error codes for retry policies, and to short messages."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from airflow_horsies.borrowed.horsies import BUILTIN_CODE_REGISTRY
from airflow_horsies.worker.masking import masked, presentable

MAX_MESSAGE_CHARS = 600
MAX_CODE_CHARS = 100
MORE_MEMORY = (
    "Raise spark.driver.memory or spark.executor.memory, use more partitions, or avoid collect() on large results."
)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """
    :param retry_helps: whether another attempt is likely to succeed.
    :param meaning: a description for people.
    """

    retry_helps: bool
    meaning: str


ERROR_CODES = {
    "BAD_INPUT": ErrorCode(False, "The arguments do not match the parameters of the task."),
    "SPARK_ANALYSIS_ERROR": ErrorCode(False, "A query names a column, table, path or function that does not exist."),
    "SPARK_DATA_ERROR": ErrorCode(False, "A query failed on a value, as in an invalid cast or an overflow."),
    "SPARK_JOB_FAILED": ErrorCode(True, "A Spark job failed for a reason without a code of its own."),
    "SPARK_SESSION_LOST": ErrorCode(True, "The Spark driver, its JVM or the Connect server died or did not start."),
    "SPARK_EXECUTOR_LOST": ErrorCode(True, "An executor was lost, or its shuffle output could not be fetched."),
    "SPARK_OUT_OF_MEMORY": ErrorCode(False, "The driver or an executor ran out of memory."),
    "PYTHON_UDF_ERROR": ErrorCode(False, "A Python function inside a query raised an exception."),
    "PYTHON_WORKER_LOST": ErrorCode(True, "The Python process of an executor was killed or ran out of memory."),
    "RESULT_NOT_JSON": ErrorCode(False, "The task returned a value that JSON cannot represent."),
    "RESULT_TOO_LARGE": ErrorCode(False, "The result exceeds the size limit. Write it with save_result()."),
    "ITEMS_FAILED": ErrorCode(False, "Some items of a chunk did not complete. Each of them has a code of its own."),
    "OUTCOMES_UNAVAILABLE": ErrorCode(True, "The outcomes of the items of a chunk could not be read or written."),
    "CHUNKS_UNSUPPORTED": ErrorCode(False, "The airflow_horsies tables are too old for chunks."),
    "INPUT_FAILED": ErrorCode(False, "An argument comes from a node of the workflow that did not complete."),
    "WORKFLOW_NOT_REGISTERED": ErrorCode(False, "The worker does not know the workflow that was to be started."),
    "NO_SUCH_WORKFLOW": ErrorCode(False, "The workflow to resume does not exist, or is past its retention."),
    "WORKFLOW_NOT_RESUMED": ErrorCode(True, "horsies could not resume a paused workflow."),
    "AWAITING_SIGNAL": ErrorCode(True, "No failure: the attempt ended to wait for a signal without a worker."),
    "SIGNAL_TIMED_OUT": ErrorCode(False, "A signal did not arrive within the timeout of the wait."),
    "SIGNALS_UNAVAILABLE": ErrorCode(True, "Signals or checkpoints could not be read or written."),
    "SIGNALS_UNSUPPORTED": ErrorCode(
        False, "No signals here: in an item of a chunk or outside of a worker; or the tables are too old."
    ),
    "PARKING_NOT_POSSIBLE": ErrorCode(False, "The task was sent without a retry policy that lets it park."),
    "CALLBACK_CLOSED": ErrorCode(False, "Nobody waits for the callback whose address the task hands out."),
    "CALLBACK_UNAVAILABLE": ErrorCode(True, "No address could be made for the callback of the task."),
    "GOOD_UNTIL_PASSED": ErrorCode(False, "good_until passed while the task ran, and the task has stop_at_good_until."),
}
"""horsies adds its own codes: TASK_TIMEOUT, WORKER_CRASHED, UNHANDLED_EXCEPTION for any other exception, and more."""


class TaskFault(Exception):
    """
    Raise it to fail a task with an error code of your own that a retry policy can name.

    .. code-block:: python

        raise TaskFault("NO_DATA_YET", f"No data has arrived for {day}.")

    :param code: capital letters, digits and underscores.
    :param message: a sentence for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SparkLost(TaskFault):
    """No Spark session is available; another attempt may get one."""

    def __init__(self, message: str) -> None:
        super().__init__("SPARK_SESSION_LOST", message)


@dataclass(frozen=True, slots=True)
class Failure:
    """The error code and the message that users see."""

    code: str | None
    message: str


def describe(error: BaseException) -> Failure:
    """The error code and the root cause. The author's own exceptions have no code."""
    if isinstance(error, TaskFault):
        return Failure(_storable_code(error.code), short(_message_of(error)))
    if not _is_of_spark(error):
        return Failure(None, short(f"{type(error).__name__}: {_message_of(error)}"))
    text = _full_text(error)
    known = _code_by_class(error) or ("PYTHON_UDF_ERROR" if PYTHON_TRACE.search(text) else None)
    if known == "PYTHON_UDF_ERROR":
        return Failure(known, short(_python_cause(text)))
    if known is not None:
        return Failure(known, short(_root_cause(text)))
    for code, pattern, message in CODES_BY_TEXT:
        found = pattern.search(text)
        if found:
            return Failure(code, short(message.format(found[0], cause=_root_cause(text))))
    return Failure("SPARK_JOB_FAILED", short(_root_cause(text)))


def _storable_code(code: object) -> str | None:
    """The code of a fault as Postgres can store it. A code of horsies stays the member that horsies requires."""
    if code is None or (isinstance(code, str) and BUILTIN_CODE_REGISTRY.get(code) is code):
        return code
    return presentable(code_text(code))[:MAX_CODE_CHARS]


def code_text(code: object) -> str:
    return str(code.value if isinstance(code, Enum) else code)


# Searched in Spark's message if the class of the exception is not specific; the most specific pattern first.
CODES_BY_TEXT: tuple[tuple[str, re.Pattern[str], str], ...] = (
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
        "The Python process of an executor was killed, ran out of memory or crashed in native code. {0}",
    ),
    (
        "SPARK_EXECUTOR_LOST",
        re.compile(
            r"ExecutorLostFailure[^\n]*|FetchFailed(?:Exception)?[^\n]*|Remote RPC client disassociated[^\n]*"
            r"|Lost executor [^\n]*"
        ),
        "An executor was lost during the computation. {0}",
    ),
    (
        "SPARK_SESSION_LOST",
        re.compile(
            r"stopped SparkContext|SparkContext was shut down|SparkContext has been shutdown|Py4JNetworkError[^\n]*"
            r"|Answer from Java side is empty|StatusCode\.UNAVAILABLE[^\n]*|INVALID_HANDLE\.SESSION_[A-Z]+"
            r"|NO_ACTIVE_SESSION|ConnectionRefusedError[^\n]*"
        ),
        "The Spark session was lost while the task ran. {0}",
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
# In the message of a failed job, the executor's exception follows the place where it ran.
TASK_FAILURE = re.compile(r"most recent failure: Lost task [^\n]*?\): (?P<cause>.+)")
JAVA_FRAME = re.compile(r"^\s+(?:at |\.\.\. \d+ more)")
JAVA_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z])")
PYTHON_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE)
PYTHON_TRACE = re.compile(r"PythonException: (?:An exception was thrown|Traceback)")
# Spark Connect includes the server's stack trace.
CONNECT_TRACE = "JVM stacktrace:"
CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
MESSAGE_UNAVAILABLE = "was raised while the error message was read"
CALLED = re.compile(r"^An error occurred while calling \S+\.?$")


def _is_of_spark(error: BaseException) -> bool:
    kinds = (kind for link in _chain(error) for kind in type(link).__mro__)
    return any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in kinds)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, without the exceptions that were only being handled when it was raised."""
    seen: set[int] = set()
    step: BaseException | None = error
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        yield step
        # py4j's own error is only the context of the connection errors.
        context = step.__context__ if isinstance(step, OSError | EOFError) else None
        step = step.__cause__ or context


def _full_text(error: BaseException) -> str:
    return "\n".join(f"{type(link).__name__}: {_message_of(link)}" for link in _chain(error))


def _message_of(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception as broken:
        # Spark's exceptions read their message from the JVM, which may be gone.
        return f"{type(broken).__name__} {MESSAGE_UNAVAILABLE}"


def _code_by_class(error: BaseException) -> str | None:
    return next(
        (CODES_BY_CLASS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in CODES_BY_CLASS), None
    )


def _python_cause(text: str) -> str:
    """``ValueError: no such day, in parse (tasks.py, line 12)``"""
    frames = list(PYTHON_FRAME.finditer(text))
    behind = text[frames[-1].end() :].partition("\n")[2] if frames else text.partition("\n")[2]
    lines = [line for line in behind.splitlines() if line and not line[0].isspace()]
    if not frames:
        return lines[-1] if lines else _root_cause(text)
    last, error = frames[-1], lines[0] if lines else "an exception"
    return f"{error}, in {last['function']} ({last['file'].rpartition('/')[2]}, line {last['line']})"


def _root_cause(text: str) -> str:
    """The executor's exception if there is one, else the first message and the innermost cause."""
    found = TASK_FAILURE.search(text)
    if found:
        return JAVA_CLASS.sub("", found["cause"].strip())
    first, causes = _first_message(text), CAUSED_BY.findall(text)
    root = JAVA_CLASS.sub("", causes[-1].strip()) if causes else first
    return first if root.partition(": ")[2] in first else f"{first} Cause: {root}"


def _first_message(text: str) -> str:
    for line in text.partition(CONNECT_TRACE)[0].splitlines():
        message = line.partition(": ")[2] if line.startswith(("Py4JJavaError", "SparkException")) else line
        message = message.strip()
        if message and not JAVA_FRAME.match(line) and not CALLED.match(message):
            return JAVA_CLASS.sub("", message.removeprefix(": "))
    return "Spark gave no reason."


def is_unstorable(error: BaseException) -> bool:
    """Whether its traceback contains a secret or text that Postgres cannot store, or cannot be read."""
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:
        return True
    return presentable(trace) != trace or _message_of(error).endswith(MESSAGE_UNAVAILABLE)


def first_line(error: BaseException) -> str:
    return masked((_message_of(error).splitlines() or [type(error).__name__])[0])


def short(text: str) -> str:
    """One line of limited length, without secrets."""
    text = presentable(re.sub(r"\s+", " ", text).strip())
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"
