"""Where the documentation explains an error."""

from __future__ import annotations

from airflow_horsies.exceptions import HorsiesError

ERRORS_PAGE = "reference/errors.html"
# The codes of airflow_horsies.worker and of horsies itself; tasks may define others.
DOCUMENTED_CODES = frozenset(
    {
        "AWAITING_SIGNAL",
        "BAD_INPUT",
        "BROKER_ERROR",
        "CALLBACK_CLOSED",
        "CALLBACK_UNAVAILABLE",
        "CHUNKS_UNSUPPORTED",
        "GOOD_UNTIL_PASSED",
        "INPUT_FAILED",
        "ITEMS_FAILED",
        "NO_SUCH_WORKFLOW",
        "NO_TYPE_AVAILABLE",
        "OUTCOMES_UNAVAILABLE",
        "PARKING_NOT_POSSIBLE",
        "PYDANTIC_HYDRATION_ERROR",
        "PYTHON_UDF_ERROR",
        "PYTHON_WORKER_LOST",
        "RESULT_DESERIALIZATION_ERROR",
        "RESULT_NOT_AVAILABLE",
        "RESULT_NOT_JSON",
        "RESULT_NOT_READY",
        "RESULT_TOO_LARGE",
        "RETURN_TYPE_MISMATCH",
        "SIGNALS_UNAVAILABLE",
        "SIGNALS_UNSUPPORTED",
        "SIGNAL_TIMED_OUT",
        "SPARK_ANALYSIS_ERROR",
        "SPARK_DATA_ERROR",
        "SPARK_EXECUTOR_LOST",
        "SPARK_JOB_FAILED",
        "SPARK_OUT_OF_MEMORY",
        "SPARK_SESSION_LOST",
        "SUBWORKFLOW_FAILED",
        "SUBWORKFLOW_LOAD_FAILED",
        "TASK_CANCELLED",
        "TASK_EXCEPTION",
        "TASK_EXPIRED",
        "TASK_NOT_FOUND",
        "TASK_TIMEOUT",
        "UNHANDLED_EXCEPTION",
        "UPSTREAM_SKIPPED",
        "WAIT_TIMEOUT",
        "WORKER_CRASHED",
        "WORKER_RESOLUTION_ERROR",
        "WORKER_SERIALIZATION_ERROR",
        "WORKFLOW_CANCELLED",
        "WORKFLOW_CTX_MISSING_ID",
        "WORKFLOW_ENQUEUE_FAILED",
        "WORKFLOW_EXPIRED",
        "WORKFLOW_FAILED",
        "WORKFLOW_NOT_FOUND",
        "WORKFLOW_NOT_REGISTERED",
        "WORKFLOW_NOT_RESUMED",
        "WORKFLOW_PAUSED",
        "WORKFLOW_SUCCESS_CASE_NOT_MET",
    }
)


def explain_error(docs_url: str, error: str | HorsiesError | None) -> str | None:
    """The URL of the documentation of an error code or an exception; None if it is not documented.

    :param docs_url: the URL of the documentation, from ``[horsies] docs_url``; empty if it is not published.
    """
    if not docs_url.startswith(("https://", "http://")):
        return None
    match error:
        case HorsiesError():
            anchor = type(error).__name__
        case str() if error in DOCUMENTED_CODES:
            anchor = error
        case _:
            return None
    return f"{docs_url.rstrip('/')}/{ERRORS_PAGE}#{anchor.lower()}"
