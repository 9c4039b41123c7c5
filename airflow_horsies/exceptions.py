"""Every error this package raises.

HorsiesError
├── InvalidTask           a value from the caller cannot become a task (also a ValueError)
│   └── TaskRefused           no live worker of the queue knows the task, or accepts the arguments
├── DatabaseError         Postgres refused or went away
│   ├── DatabaseUnreachable   no server, unknown host or database, lost connection
│   ├── DatabaseBusy          a time limit, a lock, a conflict or exhausted resources: transient
│   ├── AccessDenied          wrong password or a missing privilege
│   └── ListenUnavailable     a pooler in transaction mode blocks LISTEN
├── SchemaError           the database does not have a schema that this package supports
│   ├── SchemaMissing         no horsies tables
│   ├── SchemaUnsupported     horsies tables of an unsupported release
│   │   └── CutoverPending        upstream's cutover from 0.4 to 0.5 is not complete: transient
│   ├── HistoryPartitionMissing   the history of horsies has no partition for today, so no task can end
│   ├── LedgerNewer           our own tables were migrated by a newer airflow-horsies
│   └── LedgerOutdated        our own tables need 'airflow horsies db migrate'
├── TaskError             an error of one task, with its id
│   ├── TaskNotFound          unknown task, or past its retention
│   │   └── WorkflowNotFound      unknown workflow, or past its retention
│   ├── TaskIdTaken           the id, or the idempotency key, belongs to another task
│   ├── TaskNotCancellable    a task of a workflow, or not in one of the given states
│   ├── WorkflowNotPaused     failed nodes can be tried again only in a paused workflow
│   ├── TaskFailed            FAILED
│   │   └── WorkerLost            FAILED, because its worker died or stopped answering
│   ├── TaskCancelled         CANCELLED
│   ├── TaskExpired           EXPIRED
│   ├── WorkflowPaused        PAUSED, and the Airflow task does not wait for it to go on
│   ├── QueueNotServed        no live worker serves its queue
│   ├── BatchFailed           too many tasks of a batch did not complete
│   ├── SignalRefused         the target of a signal has ended, or has too many signals
│   └── WaitTimeout           not finished within the caller's timeout
├── SubmissionError       a task instance must not submit
│   ├── DeploymentUnknown     neither a namespace nor a base URL identifies this deployment
│   ├── NamespaceTaken        the same task instance was submitted by another Airflow deployment
│   └── StaleSubmission       the task instance was cleared, and a newer life has submitted
├── ChunksUnsupported     a live worker of the queue cannot run chunks
├── CallbacksUnsupported  a live worker of the queue cannot fill in the address of a callback
├── CallbacksDisabled     [horsies] callbacks is off, or [api] base_url is missing
├── CallbackError         a callback did not complete
│   ├── CallbackFailed        the outside party reported a failure
│   ├── CallbackExpired       no answer came in time
│   └── CallbackVoid          nobody waits for it any more: the task instance was cleared or killed
├── BatchChanged          the item at a position is no longer the one that was shown
├── RepairTooEarly        the task instance was cleared, and has not started since
├── SourceError           a read of the Spark data source is invalid
│   └── SnapshotGone          the snapshot that a DataFrame was planned on has been released
└── WireError             a row cannot be decoded; never reported as "not found"

Two more, in ``outcomes``, are also errors of Airflow: TaskFailedForGood and TaskTimedOut.
"""

from __future__ import annotations

import warnings


class HorsiesError(Exception):
    """Base of every error of this package."""


class InvalidTask(HorsiesError, ValueError):
    """A value from the caller cannot become a task; ``field`` names it, ``problem`` is the clause that follows."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem.removesuffix('.')}.")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidTask], tuple[str, str]]:
        return type(self), (self.field, self.problem)


class TaskRefused(InvalidTask):
    """No live worker of the queue knows the task, or accepts the arguments. Nothing was sent."""


class DatabaseError(HorsiesError):
    """Postgres refused a statement, or the connection failed."""


class DatabaseUnreachable(DatabaseError):
    """There is no server, the host or the database is unknown, or the connection was lost."""


class DatabaseBusy(DatabaseError):
    """A statement failed for a transient reason: a time limit, a lock, a conflict or exhausted resources."""


class AccessDenied(DatabaseError):
    """The password is wrong, or a privilege is missing."""


class ListenUnavailable(DatabaseError):
    """Notifications cannot arrive over this connection."""


class SchemaError(HorsiesError):
    """The database does not have a schema that this package supports."""


class SchemaMissing(SchemaError):
    """The database has no horsies tables."""


class SchemaUnsupported(SchemaError):
    """The horsies tables belong to a release that this package does not support."""


class CutoverPending(SchemaUnsupported):
    """A horsies 0.5 worker was started on a database of horsies 0.4, and the cutover is not complete."""


class HistoryPartitionMissing(SchemaError):
    """No task can end, because the history of horsies has no partition for today."""


class LedgerNewer(SchemaError):
    """The airflow_horsies tables were migrated by a newer release of this package."""


class LedgerOutdated(SchemaError):
    """The airflow_horsies tables must be migrated."""


class TaskError(HorsiesError):
    """An error of one task, identified by ``task_id``, ``queue`` and ``error_code``."""

    def __init__(self, message: str, *, task_id: str, queue: str | None = None, error_code: str | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.queue = queue
        self.error_code = error_code

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_task_error, (type(self), str(self), self.task_id, self.queue, self.error_code)


def _rebuild_task_error(
    kind: type[TaskError], message: str, task_id: str, queue: str | None, error_code: str | None
) -> TaskError:
    return kind(message, task_id=task_id, queue=queue, error_code=error_code)


class TaskNotFound(TaskError):
    """The task never existed, or it is past its retention."""


class WorkflowNotFound(TaskNotFound):
    """The workflow never existed, or it is past its retention; ``task_id`` is the id of the workflow."""


class TaskIdTaken(TaskError):
    """The id or the idempotency key belongs to another task, or the id to another workflow."""


class TaskNotCancellable(TaskError):
    """The task belongs to a workflow, or is not in one of the given states."""


class WorkflowNotPaused(TaskError):
    """Failed nodes can be tried again only in a paused workflow; ``task_id`` is the id of the workflow."""


class TaskFailed(TaskError):
    """The task ended FAILED."""


class WorkerLost(TaskFailed):
    """The task ended FAILED because its worker died or stopped answering."""


class TaskCancelled(TaskError):
    """The task ended CANCELLED."""


class TaskExpired(TaskError):
    """The task ended EXPIRED."""


class WorkflowPaused(TaskError):
    """The workflow, or one inside it, is paused; ``task_id`` is the id of the workflow."""


class QueueNotServed(TaskError):
    """The task waits in a queue that no live worker serves."""


class BatchFailed(TaskError):
    """Too many tasks of a batch did not complete; ``task_id`` is the first of them."""


class SignalRefused(TaskError):
    """The target of a signal, a task or a workflow, has ended or has too many signals."""


class WaitTimeout(TaskError):
    """The task did not finish within the caller's timeout."""


class SubmissionError(HorsiesError):
    """The task instance must not submit."""


class DeploymentUnknown(SubmissionError):
    """Neither a namespace nor a base URL identifies this deployment."""


class NamespaceTaken(SubmissionError):
    """The same task instance was submitted by another Airflow deployment."""


class StaleSubmission(SubmissionError):
    """The task instance was cleared, and its newer life has submitted."""


class ChunksUnsupported(HorsiesError):
    """A live worker of the queue cannot run chunks. Nothing was sent."""


class CallbacksUnsupported(HorsiesError):
    """A live worker of the queue cannot fill in the address of a callback. Nothing was sent."""


class CallbacksDisabled(HorsiesError):
    """This Airflow takes no callbacks. Nothing was sent."""


class CallbackError(HorsiesError):
    """A callback did not complete."""


class CallbackFailed(CallbackError):
    """The outside party reported a failure."""


class CallbackExpired(CallbackError):
    """No answer came in time."""


class CallbackVoid(CallbackError):
    """Nobody waits for the callback any more."""


class BatchChanged(HorsiesError):
    """The item at a position of a batch is no longer the one that the user saw."""

    def __init__(self, message: str = "The batch has changed since the page was loaded. Reload it.") -> None:
        super().__init__(message)


class RepairTooEarly(HorsiesError):
    """A plain clear, which runs everything again, has not started yet."""


class SourceError(HorsiesError, ValueError):
    """A read of the Spark data source is invalid."""


class SnapshotGone(SourceError):
    """The database snapshot that a DataFrame was planned on has been released."""


class WireError(HorsiesError):
    """A row cannot be decoded."""


# Waiters retry these with pauses instead of failing.
TRANSIENT_ERRORS: tuple[type[HorsiesError], ...] = (DatabaseUnreachable, DatabaseBusy, CutoverPending)


def __getattr__(name: str) -> object:
    if name == "PASSING_ERRORS":
        warnings.warn("PASSING_ERRORS is deprecated. Use TRANSIENT_ERRORS instead.", DeprecationWarning, stacklevel=2)
        return TRANSIENT_ERRORS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
