"""What to do about each error code, and what the codes of horsies mean; for the reference."""

from __future__ import annotations

# Code of airflow_horsies.worker to what to do; its meaning is in the code.
WORKER_CODES = {
    "BAD_INPUT": "Correct the arguments in the DAG: the message names each one that is wrong.",
    "SPARK_ANALYSIS_ERROR": "Correct the query, or create what it reads.",
    "SPARK_DATA_ERROR": "Use `try_cast` and the like, or clean the data first.",
    "SPARK_JOB_FAILED": "Read the message, then the log of the attempt.",
    "SPARK_SESSION_LOST": (
        "Name the code in a retry policy. If it comes back, see "
        "[Troubleshooting](../how-to/troubleshooting.md#spark_session_lost)."
    ),
    "SPARK_EXECUTOR_LOST": "Name the code in a retry policy. If it comes back, give the executors more memory.",
    "SPARK_OUT_OF_MEMORY": (
        "Raise `spark.driver.memory` or `spark.executor.memory`, use more partitions, and do not `collect()` a large "
        "result."
    ),
    "PYTHON_UDF_ERROR": "Correct the function: the message names the file and the line.",
    "PYTHON_WORKER_LOST": "Name the code in a retry policy. If it comes back, give the executors more memory.",
    "RESULT_NOT_JSON": "Return dicts, lists, numbers and texts. To return a DataFrame, set `max_rows`.",
    "RESULT_TOO_LARGE": "Return less, or use `save_result`, or raise `HORSIES_RESULT_BYTES`.",
    "ITEMS_FAILED": "Look at the items that failed: each has a code and a message of its own.",
    "OUTCOMES_UNAVAILABLE": (
        "Name the code in a retry policy. The items whose outcome is recorded do not run again. If it comes back, look "
        "at the connection of the worker to the database."
    ),
    "CHUNKS_UNSUPPORTED": "Run `airflow horsies db migrate`.",
    "INPUT_FAILED": (
        "Read the error of the node that failed. To handle it, annotate the parameter as `TaskResult[..., TaskError]`."
    ),
    "WORKFLOW_NOT_REGISTERED": "Load the module of the workflow on every worker of the queue, and restart the workers.",
    "NO_SUCH_WORKFLOW": "Check the id; `airflow horsies check` names the database of the connection.",
    "WORKFLOW_NOT_RESUMED": "Read the message, and resume the workflow again.",
    "AWAITING_SIGNAL": (
        "The task resumes with its signal. If the whole task failed with this code, `good_until` was too near, or "
        "horsies refused to retry it: see [Signals](../how-to/signals.md#let-a-task-park)."
    ),
    "SIGNAL_TIMED_OUT": "Send the signal earlier, or wait longer.",
    "SIGNALS_UNAVAILABLE": "Name the code in a retry policy. If it comes back, look at the database.",
    "SIGNALS_UNSUPPORTED": "Read the message: it names the place, or asks for `airflow horsies db migrate`.",
    "PARKING_NOT_POSSIBLE": (
        "Set a retry policy as [Signals](../how-to/signals.md#let-a-task-park) shows, or wait with `receive()`."
    ),
    "CALLBACK_CLOSED": "Nothing to do: an earlier attempt has handed out an address, or the wait is over.",
    "CALLBACK_UNAVAILABLE": (
        "Name the code in a retry policy. If it comes back, look at the connection of the worker to the database, or "
        "run `airflow horsies db migrate`."
    ),
    "GOOD_UNTIL_PASSED": "Send the task earlier, set a later `good_until`, or leave out `stop_at_good_until`.",
}

# Code of horsies itself to what it means, and what to do.
HORSIES_CODES = {
    "BROKER_ERROR": (
        "A worker could not read or write horsies' tables.",
        "Look at the database and at the log of the worker.",
    ),
    "NO_TYPE_AVAILABLE": (
        "horsies' own client was asked for a typed value of a task that it does not know.",
        "Import the task there.",
    ),
    "PYDANTIC_HYDRATION_ERROR": (
        "A stored value does not fit the model that horsies' own client was asked for.",
        "Compare the model with the one that wrote the value.",
    ),
    "RESULT_DESERIALIZATION_ERROR": (
        "A stored result cannot be read.",
        "Compare the releases of horsies on the workers.",
    ),
    "RESULT_NOT_AVAILABLE": ("A task ended without a stored result.", "Look at the log of the attempt."),
    "RESULT_NOT_READY": ("horsies' own client asked for the result of a task that has not ended.", "Wait for it."),
    "RETURN_TYPE_MISMATCH": (
        "A task of horsies' own decorator returned another type than it declares.",
        "Correct the task.",
    ),
    "SUBWORKFLOW_FAILED": ("A workflow within a workflow failed.", "Look at its nodes."),
    "SUBWORKFLOW_LOAD_FAILED": (
        "A worker does not know a workflow within a workflow.",
        "Load its module on every worker.",
    ),
    "TASK_CANCELLED": ("The task was cancelled.", "The log of the attempt says when."),
    "TASK_EXCEPTION": (
        "A task of horsies' own decorator returned nothing, or horsies met an exception around it.",
        "Read the message.",
    ),
    "TASK_EXPIRED": (
        "No worker had started the task by its `good_until`.",
        "See [TaskExpired](../how-to/troubleshooting.md#taskexpired).",
    ),
    "TASK_NOT_FOUND": ("horsies' own client asked for a task that is not there.", "Compare the database and the id."),
    "TASK_TIMEOUT": (
        "The attempt ran longer than its `timeout`.",
        "Raise the `timeout`, make the task faster, or name the code in a retry policy.",
    ),
    "UNHANDLED_EXCEPTION": (
        "The function raised an exception that has no code.",
        "The message is the root cause; raise `TaskFault` where a retry policy should know the case.",
    ),
    "UPSTREAM_SKIPPED": ("A node of a workflow did not run, as one before it was skipped.", "Look at that node."),
    "WAIT_TIMEOUT": ("horsies' own client did not wait long enough.", "Wait longer, or ask again."),
    "WORKER_CRASHED": (
        "The process that ran the task died.",
        "Name the code in a retry policy, and see [WorkerLost](../how-to/troubleshooting.md#workerlost).",
    ),
    "WORKER_RESOLUTION_ERROR": (
        "The worker that took the task does not know its name.",
        "Compare `task_name` with the name at `@spark_task` or `@python_task`, and restart workers that run an older "
        "module.",
    ),
    "WORKER_SERIALIZATION_ERROR": (
        "The arguments or the result cannot be read or written as JSON.",
        "Compare the arguments with what the function declares.",
    ),
    "WORKFLOW_CANCELLED": ("The workflow was cancelled.", "Start it again if it is still wanted."),
    "WORKFLOW_CTX_MISSING_ID": ("A task asked its workflow for a node without an id.", "Give the node an id."),
    "WORKFLOW_ENQUEUE_FAILED": ("A node of a workflow could not be sent.", "Read the message."),
    "WORKFLOW_EXPIRED": ("The workflow had not ended by its deadline.", "Set a later one."),
    "WORKFLOW_FAILED": ("A node of the workflow failed.", "Look at its nodes."),
    "WORKFLOW_NOT_FOUND": (
        "horsies' own client asked for a workflow that is not there.",
        "Compare the database and the id.",
    ),
    "WORKFLOW_PAUSED": ("The workflow is paused.", "Resume it."),
    "WORKFLOW_SUCCESS_CASE_NOT_MET": (
        "The workflow ended, and none of the cases that count as success holds.",
        "Look at its nodes.",
    ),
}
