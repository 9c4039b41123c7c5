"""Every error this package raises.

HorsiesError
├── InvalidTask           a value the caller gave cannot become a task (also a ValueError)
├── DatabaseError         Postgres refused or went away
│   ├── DatabaseUnreachable   no server, no such host or database, connection lost
│   ├── DatabaseBusy          a time limit, a lock, a conflict or used-up resources: it passes
│   ├── AccessDenied          wrong password or a missing privilege
│   └── ListenUnavailable     a pooler in transaction mode stands in front of LISTEN
├── SchemaError           the database does not hold what this package speaks
│   ├── SchemaMissing         no horsies tables
│   ├── SchemaUnsupported     horsies tables of a release we do not speak
│   │   └── CutoverPending        upstream's cutover from 0.4 to 0.5 is not done yet: it passes
│   ├── HistoryPartitionMissing   horsies' history has no partition for today, so that no task can end
│   ├── LedgerNewer           our own tables were migrated by a newer airflow-horsies
│   └── LedgerOutdated        our own tables wait for 'airflow horsies db migrate'
├── TaskError             one task, with its id
│   ├── TaskNotFound          no such task, or past its retention
│   ├── TaskIdTaken           the id, or the idempotency key, belongs to another task
│   ├── TaskNotCancellable    a workflow's task, or a state that was not asked for
│   ├── TaskFailed            FAILED
│   │   └── WorkerLost            FAILED, because its worker died or stopped answering
│   ├── TaskCancelled         CANCELLED
│   ├── TaskExpired           EXPIRED
│   ├── QueueNotServed        no live worker serves its queue
│   ├── BatchFailed           too many tasks of a batch did not complete
│   └── WaitTimeout           still not finished when the caller's time was up
├── SubmissionError       a task instance that may not submit
│   ├── DeploymentUnknown     neither a namespace nor a base URL tells this deployment from others
│   ├── NamespaceTaken        the same task instance was submitted by another Airflow deployment
│   └── StaleSubmission       the task instance was cleared since: a newer life has submitted
├── SourceError           the Spark data source was asked for something it does not have
│   └── SnapshotGone          a DataFrame was read again after the database state it was planned on was let go
└── WireError             a row that cannot be decoded; never reported as "not found"

Two more, in ``outcomes``, are errors of Airflow's at the same time: TaskFailedForGood and TaskTimedOut.
"""

from __future__ import annotations


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


class DatabaseError(HorsiesError):
    """Postgres refused a statement or went away."""


class DatabaseUnreachable(DatabaseError):
    """No server, no such host or database, or the connection was lost."""


class DatabaseBusy(DatabaseError):
    """A statement was refused for a passing reason: a time limit, a lock, a conflict, used-up resources."""


class AccessDenied(DatabaseError):
    """A wrong password or a missing privilege."""


class ListenUnavailable(DatabaseError):
    """Notifications cannot arrive over this connection."""


class SchemaError(HorsiesError):
    """The database does not hold what this package speaks."""


class SchemaMissing(SchemaError):
    """The database has no horsies tables."""


class SchemaUnsupported(SchemaError):
    """The horsies tables are of a release this package does not speak."""


class CutoverPending(SchemaUnsupported):
    """A horsies 0.5 worker was started on a database of horsies 0.4, whose cutover is not done yet."""


class HistoryPartitionMissing(SchemaError):
    """A task cannot end, as horsies' history has no partition for the present day."""


class LedgerNewer(SchemaError):
    """The airflow_horsies tables were migrated by a newer release of this package."""


class LedgerOutdated(SchemaError):
    """The airflow_horsies tables wait for somebody to migrate them."""


class TaskError(HorsiesError):
    """Something about one task; ``task_id``, ``queue`` and ``error_code`` say which."""

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
    """No such task, or it is past its retention."""


class TaskIdTaken(TaskError):
    """The id or the idempotency key belongs to another task."""


class TaskNotCancellable(TaskError):
    """The task is in a state, or of a kind, that cannot be cancelled."""


class TaskFailed(TaskError):
    """The task ended FAILED."""


class WorkerLost(TaskFailed):
    """The task ended FAILED because its worker died or stopped answering."""


class TaskCancelled(TaskError):
    """The task ended CANCELLED."""


class TaskExpired(TaskError):
    """The task ended EXPIRED."""


class QueueNotServed(TaskError):
    """The task waits in a queue that no live worker serves."""


class BatchFailed(TaskError):
    """Too many tasks of a batch did not complete; ``task_id`` is the first of them."""


class WaitTimeout(TaskError):
    """The task had not finished when the caller's time was up."""


class SubmissionError(HorsiesError):
    """A task instance that may not submit."""


class DeploymentUnknown(SubmissionError):
    """Neither a namespace nor a base URL tells this deployment from others."""


class NamespaceTaken(SubmissionError):
    """The same task instance was submitted by another Airflow deployment."""


class StaleSubmission(SubmissionError):
    """The task instance was cleared since, and its newer life has submitted."""


class SourceError(HorsiesError, ValueError):
    """The Spark data source was asked for something it does not have."""


class SnapshotGone(SourceError):
    """The database state that a DataFrame was planned on is no longer held."""


class WireError(HorsiesError):
    """A row that cannot be decoded."""


# They pass by themselves: whoever waits tries again, with pauses, and fails nobody.
PASSING_ERRORS: tuple[type[HorsiesError], ...] = (DatabaseUnreachable, DatabaseBusy, CutoverPending)
