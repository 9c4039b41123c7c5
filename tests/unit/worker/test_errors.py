from __future__ import annotations

import enum
import re
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.borrowed.horsies import OutcomeCode
from airflow_horsies.worker.errors import (
    CODES_BY_CLASS,
    CODES_BY_TEXT,
    ERROR_CODES,
    MAX_MESSAGE_CHARS,
    SparkLost,
    TaskFault,
    describe,
    first_line,
)
from airflow_horsies.worker.masking import mask

CAPTURED = "pyspark.errors.exceptions.captured"
CONNECT = "pyspark.errors.exceptions.connect"
SECRET = "s3cret-word"


class Code(enum.Enum):
    LATE = "LATE"


class TextCode(str, enum.Enum):  # noqa: UP042 - as horsies has its own
    LATE = "LATE"


def kind(name: str, module: str, *bases: type[Exception], **members: Any) -> type[Exception]:
    """A class as pyspark, py4j or grpc has it; theirs want a JVM to be made."""
    return type(name, bases or (Exception,), {"__module__": module, **members})


Analysis = kind("AnalysisException", CAPTURED)
Parse = kind("ParseException", CAPTURED, Analysis)
IllegalArgument = kind("IllegalArgumentException", CAPTURED)
NumberFormat = kind("NumberFormatException", CAPTURED, IllegalArgument)
Arithmetic = kind("ArithmeticException", CAPTURED)
Runtime = kind("SparkRuntimeException", CAPTURED)
PythonUdf = kind("PythonException", CAPTURED)
Java = kind("Py4JJavaError", "py4j.protocol")
Network = kind("Py4JNetworkError", "py4j.protocol")
Grpc = kind("SparkConnectGrpcException", CONNECT)
Unknown = kind("UnknownException", CONNECT, Grpc)
ConnectAnalysis = kind("AnalysisException", CONNECT, Grpc)
ConnectPythonUdf = kind("PythonException", CONNECT, Grpc)

FRAMES = (
    "\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2998)\n"
    "\tat java.base/java.lang.Thread.run(Thread.java:1583)\n"
    "\t... 12 more\n"
)


def java(message: str, then: str = "") -> Exception:
    """str() of a Py4JJavaError."""
    return Java(f"An error occurred while calling o359.collectToPython.\n: {message}\n{FRAMES}{then}")


def job_failed(cause: str, where: str = "localhost executor driver") -> Exception:
    return java(
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 12.0 failed 1 times, "
        f"most recent failure: Lost task 0.0 in stage 12.0 (TID 20) ({where}): {cause}",
        "\nDriver stacktrace:\n" + FRAMES,
    )


TRACEBACK = """Traceback (most recent call last):
  File "/opt/tasks/flights.py", line 12, in clean
    return parse(day)
  File "/opt/tasks/days.py", line 26, in parse
    raise ValueError("no such day: 31 February")
ValueError: no such day: 31 February
"""


def udf_failed(message: str) -> Exception:
    return PythonUdf(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "/opt/tasks/days.py", line 26, in parse\n    return days[name]\n{message}'
    )


CASES: dict[str, tuple[Exception, str, str]] = {
    "missing column": (
        Analysis(
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `nope` cannot be "
            "resolved. Did you mean one of the following? [`id`]. SQLSTATE: 42703;\n'Project ['nope]\n"
            "+- Range (0, 5, step=1, splits=Some(2))\n"
        ),
        "SPARK_ANALYSIS_ERROR",
        "with name `nope` cannot be resolved. Did you mean one of the following? [`id`]",
    ),
    "missing path": (
        Analysis("[PATH_NOT_FOUND] Path does not exist: file:/nope/x. SQLSTATE: 42K03"),
        "SPARK_ANALYSIS_ERROR",
        "[PATH_NOT_FOUND] Path does not exist: file:/nope/x",
    ),
    "path that reads like another error": (
        Analysis("[PATH_NOT_FOUND] Path does not exist: s3a://lake/exit code 52.csv. SQLSTATE: 42K03"),
        "SPARK_ANALYSIS_ERROR",
        "Path does not exist: s3a://lake/exit code 52.csv",
    ),
    "query that cannot be parsed": (
        Parse(
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n\n"
            "== SQL ==\nselec 1\n^^^\n"
        ),
        "SPARK_ANALYSIS_ERROR",
        "[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'",
    ),
    "missing table": (
        Analysis(
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `nope` cannot be found. Verify the spelling and correctness "
            "of the schema and catalog.\nSearch path: [`system`.`builtin`].\nTo tolerate the error on drop use DROP "
            "VIEW IF EXISTS or DROP TABLE IF EXISTS. SQLSTATE: 42P01;\n'UnresolvedRelation [nope], [], false\n"
        ),
        "SPARK_ANALYSIS_ERROR",
        "The table or view `nope` cannot be found",
    ),
    "Python UDF": (
        PythonUdf(f"An exception was thrown from the Python worker:\n{TRACEBACK.strip()}"),
        "PYTHON_UDF_ERROR",
        "ValueError: no such day: 31 February, in parse (days.py, line 26)",
    ),
    "Python UDF over Connect": (
        ConnectPythonUdf(
            "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n[PYTHON_EXCEPTION] "
            f"An exception was thrown from the Python worker: {TRACEBACK} SQLSTATE: 38000"
        ),
        "PYTHON_UDF_ERROR",
        "ValueError: no such day: 31 February, in parse (days.py, line 26)",
    ),
    "Python UDF that fails a job": (
        job_failed(f"org.apache.spark.api.python.PythonException: {TRACEBACK}"),
        "PYTHON_UDF_ERROR",
        "ValueError: no such day: 31 February, in parse (days.py, line 26)",
    ),
    "Python UDF that reaches for a server that is away": (
        udf_failed("ConnectionRefusedError: [Errno 111] Connection refused"),
        "PYTHON_UDF_ERROR",
        "ConnectionRefusedError: [Errno 111] Connection refused, in parse (days.py, line 26)",
    ),
    "Python UDF with an exception of the author": (
        udf_failed("NoSuchDay: 31 February"),
        "PYTHON_UDF_ERROR",
        "NoSuchDay: 31 February, in parse",
    ),
    "Python UDF with an exception that says nothing": (
        udf_failed("StopIteration"),
        "PYTHON_UDF_ERROR",
        "StopIteration, in parse",
    ),
    "Python UDF with an exception of a library": (
        udf_failed("pandas._libs.tslibs.np_datetime.OutOfBoundsDatetime: Out of bounds"),
        "PYTHON_UDF_ERROR",
        "OutOfBoundsDatetime: Out of bounds, in parse",
    ),
    "divide by zero": (
        Arithmetic(
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. "
            'If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n'
            "== SQL (line 1, position 8) ==\nselect 1/0\n       ^^^\n"
        ),
        "SPARK_DATA_ERROR",
        "[DIVIDE_BY_ZERO] Division by zero",
    ),
    "bad cast": (
        NumberFormat(
            '[CAST_INVALID_INPUT] The value \'a\' of the type "STRING" cannot be cast to "INT" because it is '
            "malformed. SQLSTATE: 22018\n== SQL (line 1, position 8) ==\nselect cast('a' as int)\n"
        ),
        "SPARK_DATA_ERROR",
        'The value \'a\' of the type "STRING" cannot be cast to "INT"',
    ),
    "raise_error": (
        Runtime("[USER_RAISED_EXCEPTION] boo SQLSTATE: P0001"),
        "SPARK_JOB_FAILED",
        "[USER_RAISED_EXCEPTION] boo",
    ),
    "folder that cannot be made": (
        job_failed("java.io.IOException: Mkdirs failed to create file:/proc/x/_temporary/0 (exists=false)"),
        "SPARK_JOB_FAILED",
        "IOException: Mkdirs failed to create file:/proc/x/_temporary/0 (exists=false)",
    ),
    "file that is no Parquet": (
        java(
            "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
            "file:/data/x.parquet. SQLSTATE: KD001",
            "Caused by: java.lang.RuntimeException: file:/data/x.parquet is not a Parquet file\n" + FRAMES,
        ),
        "SPARK_JOB_FAILED",
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/data/x.parquet",
    ),
    "database of a data source away": (
        java(
            "org.postgresql.util.PSQLException: Connection to db:5432 refused. Check that the hostname and port are "
            "correct",
            "Caused by: java.net.ConnectException: Connection refused\n" + FRAMES,
        ),
        "SPARK_JOB_FAILED",
        "Connection to db:5432 refused",
    ),
    "cancelled job": (
        java("org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 13 cancelled part of cancelled job group g1"),
        "SPARK_JOB_FAILED",
        "Job 13 cancelled part of cancelled job group g1",
    ),
    "cancelled operation of Connect": (
        Unknown(
            "(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008\n\n"
            f"JVM stacktrace:\norg.apache.spark.SparkSQLException\n{FRAMES}"
        ),
        "SPARK_JOB_FAILED",
        "[OPERATION_CANCELED] Operation has been canceled",
    ),
    "analysis error of Connect": (
        ConnectAnalysis(
            f"[PATH_NOT_FOUND] Path does not exist: file:/nope/x. SQLSTATE: 42K03\n\nJVM stacktrace:\n"
            f"org.apache.spark.sql.AnalysisException\n{FRAMES}"
        ),
        "SPARK_ANALYSIS_ERROR",
        "Path does not exist: file:/nope/x",
    ),
    "executor lost": (
        job_failed(
            "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Executor heartbeat "
            "timed out after 120000 ms",
            where="10.0.0.5 executor 3",
        ),
        "SPARK_EXECUTOR_LOST",
        "Executor heartbeat timed out after 120000 ms",
    ),
    "shuffle file lost": (
        java(
            "org.apache.spark.SparkException: Job aborted due to stage failure: ShuffleMapStage 3 has failed the "
            "maximum allowable number of times: 4. Most recent failure reason:\n"
            "org.apache.spark.shuffle.FetchFailedException: Failed to connect to /10.0.0.5:7337"
        ),
        "SPARK_EXECUTOR_LOST",
        "FetchFailedException: Failed to connect to /10.0.0.5:7337",
    ),
    "executor ended with code 52": (
        job_failed(
            "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited with "
            "exit code 52",
            where="10.0.0.5 executor 3",
        ),
        "SPARK_OUT_OF_MEMORY",
        "Spark ran out of memory (code 52)",
    ),
    "executor killed by Kubernetes": (
        job_failed(
            "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: \nThe executor with id "
            "3 exited with exit code 137(SIGKILL, possible container OOM).",
            where="10.0.0.5 executor 3",
        ),
        "SPARK_OUT_OF_MEMORY",
        "spark.executor.memory",
    ),
    "Java heap space": (
        job_failed("java.lang.OutOfMemoryError: Java heap space"),
        "SPARK_OUT_OF_MEMORY",
        "java.lang.OutOfMemoryError: Java heap space",
    ),
    "out of memory without a word": (
        java("java.lang.OutOfMemoryError"),
        "SPARK_OUT_OF_MEMORY",
        "Spark ran out of memory (java.lang.OutOfMemoryError)",
    ),
    "result of collect() too large": (
        java(
            "org.apache.spark.SparkException: Job aborted due to stage failure: Total size of serialized results of 3 "
            "tasks (1040.0 MiB) is bigger than spark.driver.maxResultSize (1024.0 MiB)"
        ),
        "SPARK_OUT_OF_MEMORY",
        "Total size of serialized results of 3 tasks (1040.0 MiB) is bigger than spark.driver.maxResultSize",
    ),
    "Python worker killed": (
        job_failed(
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting "
            "'spark.sql.execution.pyspark.udf.faulthandler.enabled' or 'spark.python.worker.faulthandler.enabled' "
            "configuration to 'true' for the better Python traceback."
        ),
        "PYTHON_WORKER_LOST",
        "Python worker exited unexpectedly (crashed)",
    ),
    "SparkContext stopped": (
        java("org.apache.spark.SparkException: Job 5 cancelled because SparkContext was shut down"),
        "SPARK_SESSION_LOST",
        "SparkContext was shut down",
    ),
    "JVM gone": (
        Network("Answer from Java side is empty"),
        "SPARK_SESSION_LOST",
        "The Spark session was lost",
    ),
    "Connect server gone": (
        Grpc(
            "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
            '\tdetails = "Stream removed (Socket closed)"\n\tdebug_error_string = "UNKNOWN:Error received from peer"\n>'
        ),
        "SPARK_SESSION_LOST",
        "StatusCode.UNAVAILABLE",
    ),
    "session of Connect closed": (
        Grpc("[NO_ACTIVE_SESSION] No active Spark session found. Please create a new Spark session."),
        "SPARK_SESSION_LOST",
        "NO_ACTIVE_SESSION",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_exception_of_spark_has_a_code_and_its_root_cause(case: str) -> None:
    error, code, says = CASES[case]
    failure = describe(error)
    assert failure.code == code
    assert says in failure.message


@pytest.mark.parametrize("case", CASES)
def test_a_message_is_a_line_or_two_without_frames_of_java(case: str) -> None:
    message = describe(CASES[case][0]).message
    assert len(message) <= MAX_MESSAGE_CHARS
    assert "\n" not in message
    assert "\tat " not in message
    assert not re.search(
        r"\bat (org|java|scala)\.|\.(java|scala):\d+\)|JVM stacktrace|An error occurred while", message
    )


def test_every_code_that_is_given_is_explained() -> None:
    given = {code for code, _, _ in CODES_BY_TEXT} | set(CODES_BY_CLASS.values())
    given |= {code for _, code, _ in CASES.values()}
    assert given <= set(ERROR_CODES)
    assert all(code.isupper() and meaning.meaning.endswith(".") for code, meaning in ERROR_CODES.items())


def test_a_dead_jvm_is_known_by_the_refused_connection() -> None:
    def ask() -> None:
        try:
            raise Network("Error while receiving")
        except Network:
            raise ConnectionRefusedError(111, "Connection refused")  # noqa: B904

    with pytest.raises(ConnectionRefusedError) as caught:
        ask()
    assert describe(caught.value).code == "SPARK_SESSION_LOST"


def test_an_exception_of_the_author_has_no_code() -> None:
    failure = describe(ValueError("no such day"))
    assert (failure.code, failure.message) == (None, "ValueError: no such day")
    assert describe(ConnectionRefusedError(111, "Connection refused")).code is None
    assert describe(MemoryError()).code is None


def test_an_author_can_hide_spark_behind_an_exception_of_their_own() -> None:
    def load() -> None:
        try:
            raise CASES["missing table"][0]
        except Analysis:
            raise LookupError("load the flights first") from None

    with pytest.raises(LookupError) as caught:
        load()
    failure = describe(caught.value)
    assert (failure.code, failure.message) == (None, "LookupError: load the flights first")


def test_an_exception_of_the_author_in_the_midst_of_one_of_spark_is_the_authors() -> None:
    def load() -> None:
        try:
            raise CASES["missing table"][0]
        except Analysis:
            raise LookupError("load the flights first")  # noqa: B904

    with pytest.raises(LookupError) as caught:
        load()
    assert describe(caught.value).code is None


def test_grpc_of_something_else_than_spark_is_the_authors() -> None:
    error = kind("_InactiveRpcError", "grpc._channel")("status = StatusCode.UNAVAILABLE, bigtable")
    assert describe(error).code is None


def test_a_fault_has_the_code_it_was_given() -> None:
    failure = describe(TaskFault("BAD_INPUT", "day is missing"))
    assert (failure.code, failure.message) == ("BAD_INPUT", "day is missing")
    failure = describe(SparkLost("it did not start"))
    assert (failure.code, failure.message) == ("SPARK_SESSION_LOST", "it did not start")
    # horsies takes its own codes only as members.
    assert describe(TaskFault(OutcomeCode.TASK_TIMEOUT, "late")).code is OutcomeCode.TASK_TIMEOUT


@pytest.mark.parametrize(
    ("code", "stored"),
    [
        (Code.LATE, "LATE"),
        (TextCode.LATE, "LATE"),
        ("BAD\ud800CODE", r"BAD\ud800CODE"),
        ("BAD\x00CODE", "BAD\N{REPLACEMENT CHARACTER}CODE"),
        (7, "7"),
        ("LONG" * 1_000, "LONG" * 25),
        (None, None),
    ],
)
def test_the_code_of_a_fault_can_be_stored(code: Any, stored: str | None) -> None:
    found = describe(TaskFault(code, "no")).code
    assert found == stored and type(found) is type(stored)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"login with {SECRET} failed"),
        TaskFault("BAD_INPUT", f"key: {SECRET}"),
        Analysis(f"[PATH_NOT_FOUND] Path does not exist: s3a://id:{SECRET}@bucket/x"),
        job_failed(f"java.io.IOException: 403 for {SECRET}"),
        PythonUdf(f"An exception was thrown from the Python worker:\nTraceback:\nValueError: {SECRET}"),
        Grpc(f"StatusCode.UNAVAILABLE: sc://host/;token={SECRET}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_secrets_are_masked_in_messages(error: Exception) -> None:
    mask(SECRET)
    message = describe(error).message
    assert SECRET not in message
    assert "***" in message


def test_a_secret_is_masked_also_where_a_long_message_is_cut() -> None:
    mask(SECRET)
    text = "x" * (MAX_MESSAGE_CHARS - len("ValueError: ") - 4) + SECRET
    assert SECRET[:4] not in describe(ValueError(text)).message


def test_a_long_message_is_cut() -> None:
    message = describe(ValueError("word " * 1_000)).message
    assert len(message) == MAX_MESSAGE_CHARS + 1
    assert message.endswith("…")


def test_an_exception_of_spark_that_says_nothing_is_still_described() -> None:
    assert describe(Java("")).code == "SPARK_JOB_FAILED"
    assert describe(Java("")).message


def test_an_exception_that_asks_a_dead_jvm_what_to_say_is_still_described() -> None:
    class Dead(Java):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    assert describe(Dead()).code == "SPARK_SESSION_LOST"


def test_an_exception_whose_text_cannot_be_had_is_still_described() -> None:
    class Wordless(Exception):
        def __str__(self) -> str:
            return None  # type: ignore[return-value]

    failure = describe(Wordless())
    assert failure.code is None
    assert failure.message.startswith("Wordless: TypeError")


def test_messages_become_what_postgres_can_hold() -> None:
    message = describe(ValueError("nul \x00, half \ud83d pair")).message
    assert message == "ValueError: nul \N{REPLACEMENT CHARACTER}, half \\ud83d pair"


def test_braces_in_what_spark_says_are_text() -> None:
    failure = describe(java("java.lang.OutOfMemoryError: {0} {cause} {nope}"))
    assert (failure.code, "{0} {cause} {nope}" in failure.message) == ("SPARK_OUT_OF_MEMORY", True)


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert describe(first).message == "ValueError: a"


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("\n one\ntwo"), "one"), (ValueError(), "ValueError"), (ValueError("  "), "ValueError")],
)
def test_first_line_is_never_empty(error: Exception, line: str) -> None:
    assert first_line(error) == line
