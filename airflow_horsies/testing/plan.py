"""What a test declares: how tasks end, what they write, and which queues are served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from airflow_horsies.client.rules import EncodedTask
from airflow_horsies.core.cluster import QueueDepth
from airflow_horsies.core.graph import Graph
from airflow_horsies.core.log import Progress
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.task import TaskState
from airflow_horsies.testing.outcomes import Outcome

if TYPE_CHECKING:
    from airflow_horsies.testing.memory import Memory

P = ParamSpec("P")
R = TypeVar("R")


class UndeclaredTask(AssertionError):
    """The code under test uses a task or a queue that the test does not declare."""


class ImpossibleOutcome(AssertionError):
    """The test declares an end that the task cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to send; ``kwargs`` are its arguments as a worker receives them."""

    spec: TaskSpec
    kwargs: Mapping[str, Any]
    encoded: EncodedTask
    # Of a workflow, which is kept as a task.
    graph: Graph | None = None

    @property
    def id(self) -> str:
        return self.encoded.id

    @property
    def key(self) -> bytes | None:
        return self.encoded.idempotency_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The declared outcome of tasks with a name, or with a name and certain arguments."""

    task_name: str
    kwargs: Mapping[str, Any]
    outcome: Outcome
    is_workflow: bool = False

    def covers(self, task: NewTask) -> bool:
        if self.is_workflow is not (task.graph is not None):
            return False
        return task.spec.task_name == self.task_name and self.kwargs.items() <= task.kwargs.items()


class Plan:
    """The declarations of a test, for all its databases. Its lock guards their tables, too."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.declared: list[Declared] = []
        self.lines: dict[str, list[tuple[str, str]]] = {}
        self.progress: dict[str, Progress] = {}
        self.queues: dict[str, QueueDepth] = {}
        self.failures: Counter[bytes] = Counter()
        self.refused: list[AssertionError] = []
        self.sent: list[tuple[Memory, NewTask]] = []

    def outcome_of(self, task: NewTask) -> Outcome:
        """The last declared outcome of the task; an error if there is none, or if the task cannot end so."""
        name = task.spec.task_name
        outcome = next((item.outcome for item in reversed(self.declared) if item.covers(task)), None)
        if outcome is None:
            arguments = ", ".join(f"{key}={value!r}" for key, value in task.kwargs.items()) or "no arguments"
            if task.graph is not None:
                raise self.refuse(
                    UndeclaredTask(
                        f"The horsies workflow {name!r} was started with {arguments}, and the test does not say how it "
                        f"ends. Declare it before, for example with horsies.workflow_returns({name!r}, value)."
                    )
                )
            raise self.refuse(
                UndeclaredTask(
                    f"The horsies task {name!r} was sent with {arguments}, and the test does not say how it ends. "
                    f"Declare it before it is sent, for example with horsies.returns({name!r}, value)."
                )
            )
        if (outcome.state is TaskState.EXPIRED or outcome.never_starts) and task.spec.good_until is None:
            noun = "task" if task.graph is None else "workflow"
            raise self.refuse(
                ImpossibleOutcome(
                    f"The test declares that the horsies {noun} {name!r} expires, but it was sent without good_until "
                    "and so waits for a worker forever. Set good_until where it is sent, or declare another end."
                )
            )
        return outcome

    def refuse(self, error: AssertionError) -> AssertionError:
        """Airflow only logs exceptions of tasks and callbacks, so FakeHorsies raises the error again at its end."""
        self.refused.append(error)
        return error


class Planned(Protocol):
    plan: Plan


S = TypeVar("S", bound=Planned)


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """One thread of the test at a time."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.plan.lock:
            return method(self, *args, **kwargs)

    return call
