"""FakeHorsies: declares how horsies tasks end in a test, and records what was sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from airflow_horsies.core.graph import Graph
from airflow_horsies.core.log import Progress
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.task import TaskFailure, TaskState, TaskView
from airflow_horsies.core.validation import require_error_code
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.testing import active
from airflow_horsies.testing.client import FakeClient
from airflow_horsies.testing.ledger import FakeLedger
from airflow_horsies.testing.memory import Memory, make_queue
from airflow_horsies.testing.outcomes import Outcome, as_json
from airflow_horsies.testing.plan import Declared, NewTask, Plan


class FakeHorsies:
    """
    Replaces horsies' database and workers for every hook, operator, sensor, trigger and notifier that is used inside
    its ``with`` block. It reads no Airflow connection: each connection id has a database of its own. In a thread, the
    block of that thread applies, and else the last one that began.

    Declare first how each task ends. Sending a task that is not declared raises :class:`UndeclaredTask`, also at the
    end of the block. If the test fails before that, the error has a note about it.

    .. code-block:: python

        from airflow_horsies.operators import HorsiesOperator
        from airflow_horsies.testing import FakeHorsies, run_task

        load = HorsiesOperator(task_id="load", task_name="sales.load", kwargs={"day": "{{ ds }}"})

        with FakeHorsies() as horsies:
            horsies.returns("sales.load", {"rows": 3})
            assert run_task(load, ds="2026-01-01") == {"rows": 3}
            assert horsies.sent("sales.load") == [{"day": "2026-01-01"}]
    """

    def __init__(self) -> None:
        self._plan = Plan()
        self._ledgers: dict[str, FakeLedger] = {}
        self._clients: WeakKeyDictionary[HorsiesHook, FakeClient] = WeakKeyDictionary()
        self.ledger = self._find_ledger(HorsiesHook.default_conn_name)
        self.memory = self.ledger.memory

    def __enter__(self) -> Self:
        active.activate(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        active.deactivate(self)
        for refused in self._plan.refused:
            if error is None:
                raise refused
            if error is not refused:
                error.add_note(str(refused))

    # -- how tasks end -----------------------------------------------------------------------------------------------

    def returns(
        self, task_name: str, value: Any | Callable[..., Any] = None, *, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """
        Tasks of this name complete.

        .. code-block:: python

            horsies.returns("sales.load", {"rows": 3})
            horsies.returns("sales.double", lambda number: 2 * number)

        :param task_name: the name under which the task is registered on the workers.
        :param value: the JSON value they return, or a function that is called with their arguments. If the function
            raises an exception, the task fails with the code UNHANDLED_EXCEPTION.
        :param kwargs: only tasks with these arguments, among others. The last matching declaration applies.
        """
        self._declare(task_name, kwargs, Outcome(value=_checked(value)))

    def fails(
        self,
        task_name: str,
        error_code: str,
        message: str = "",
        *,
        kwargs: Mapping[str, Any] | None = None,
        times: int | None = None,
        then: Any | Callable[..., Any] = None,
    ) -> None:
        """
        Tasks of this name fail. If their retry policy names the code, they are retried as often as it allows.

        .. code-block:: python

            horsies.fails("sales.check", "BAD_INPUT", "There is no such day.")
            horsies.fails("sales.fetch", "RATE_LIMITED", "Try later.", times=2, then={"rows": 1})

        :param task_name: the name under which the task is registered on the workers.
        :param error_code: the error code of the failure.
        :param message: its message.
        :param kwargs: only tasks with these arguments, among others.
        :param times: how many attempts with the same arguments fail, counting retries of both horsies and Airflow; None
            is all of them.
        :param then: the value of the next attempt, or a function of the task's arguments.
        """
        require_error_code("error_code", error_code)
        failure = TaskFailure(error_code=error_code, message=message or None)
        self._declare(task_name, kwargs, Outcome(value=_checked(then), failure=failure, failures=times))

    def expires(self, task_name: str, *, kwargs: Mapping[str, Any] | None = None) -> None:
        """
        No worker starts tasks of this name by their ``good_until``: ``horsies.expires("sales.late")``. A task without
        ``good_until`` never expires, so sending one raises :class:`ImpossibleOutcome`.

        :param task_name: the name under which the task is registered on the workers.
        :param kwargs: only tasks with these arguments, among others.
        """
        self._declare(task_name, kwargs, Outcome(state=TaskState.EXPIRED))

    def is_cancelled(self, task_name: str, *, kwargs: Mapping[str, Any] | None = None) -> None:
        """
        Somebody cancels tasks of this name: ``horsies.is_cancelled("sales.load")``.

        :param task_name: the name under which the task is registered on the workers.
        :param kwargs: only tasks with these arguments, among others.
        """
        self._declare(task_name, kwargs, Outcome(state=TaskState.CANCELLED))

    def never_ends(self, task_name: str, *, kwargs: Mapping[str, Any] | None = None) -> None:
        """
        Tasks of this name run until they are cancelled or declared again: ``horsies.never_ends("sales.slow")``.

        A wait for such a task does not sleep: it times out at once.

        :param task_name: the name under which the task is registered on the workers.
        :param kwargs: only tasks with these arguments, among others.
        """
        self._declare(task_name, kwargs, Outcome(state=TaskState.RUNNING))

    # -- how workflows end --------------------------------------------------------------------------------------------

    def workflow_returns(
        self, name: str, value: Any | Callable[..., Any] = None, *, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """
        Workflows of this name complete. The nodes do not run: declare only the workflow.

        .. code-block:: python

            horsies.workflow_returns("flights.month", {"flights": 28834})

        :param name: the key of a registered workflow, or the name of a graph, which is the id of its Airflow task.
        :param value: the JSON value it returns, or a function that is called with the parameters of a registered
            workflow.
        :param kwargs: only registered workflows with these parameters, among others. The last matching declaration
            applies.
        """
        self._declare(name, kwargs, Outcome(value=_checked(value)), is_workflow=True)

    def workflow_fails(
        self,
        name: str,
        error_code: str,
        message: str = "",
        *,
        node: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        times: int | None = None,
        then: Any | Callable[..., Any] = None,
    ) -> None:
        """
        Workflows of this name fail.

        .. code-block:: python

            horsies.workflow_fails("flights.month", "BAD_INPUT", "There is no such month.", node="load/parse")

        :param name: the key of a registered workflow, or the name of a graph.
        :param error_code: the error code of the failure.
        :param message: its message.
        :param node: the node that fails, with the names of the nodes that lead to it.
        :param kwargs: only registered workflows with these parameters, among others.
        :param times: how many workflows with the same arguments fail; None is all of them.
        :param then: the value of the next one.
        """
        require_error_code("error_code", error_code)
        failure = TaskFailure(error_code=error_code, message=message or None)
        outcome = Outcome(value=_checked(then), failure=failure, failures=times, node=node)
        self._declare(name, kwargs, outcome, is_workflow=True)

    def workflow_expires(self, name: str, *, kwargs: Mapping[str, Any] | None = None) -> None:
        """
        No worker starts workflows of this name by their ``good_until``: ``horsies.workflow_expires("flights.month")``.

        :param name: the key of a registered workflow, or the name of a graph.
        :param kwargs: only registered workflows with these parameters, among others.
        """
        failure = TaskFailure(error_code="TASK_EXPIRED", message=None)
        self._declare(name, kwargs, Outcome(failure=failure, failures=None, never_starts=True), is_workflow=True)

    def workflow_is_cancelled(self, name: str, *, kwargs: Mapping[str, Any] | None = None) -> None:
        """
        Somebody cancels workflows of this name: ``horsies.workflow_is_cancelled("flights.month")``.

        :param name: the key of a registered workflow, or the name of a graph.
        :param kwargs: only registered workflows with these parameters, among others.
        """
        self._declare(name, kwargs, Outcome(state=TaskState.CANCELLED), is_workflow=True)

    def workflow_is_paused(
        self,
        name: str,
        then: Any | Callable[..., Any] = None,
        *,
        error_code: str | None = None,
        node: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Workflows of this name are paused until they are resumed, cancelled or declared again.

        .. code-block:: python

            horsies.workflow_is_paused("flights.month", {"flights": 28834}, error_code="BAD_INPUT", node="load/parse")

        A wait for such a workflow does not sleep: it times out at once.

        :param name: the key of a registered workflow, or the name of a graph.
        :param then: what it returns after somebody resumed it.
        :param error_code: the error code of the node that failed and so paused it; None if a user paused it.
        :param node: that node, with the names of the nodes that lead to it.
        :param kwargs: only registered workflows with these parameters, among others.
        """
        failure = None
        if error_code is not None:
            require_error_code("error_code", error_code)
            failure = TaskFailure(error_code=error_code, message=None)
        outcome = Outcome(value=_checked(then), failure=failure, state=TaskState.RUNNING, node=node, is_paused=True)
        self._declare(name, kwargs, outcome, is_workflow=True)

    def workflow_never_ends(self, name: str, *, kwargs: Mapping[str, Any] | None = None) -> None:
        """
        Workflows of this name run until they are cancelled or declared again:
        ``horsies.workflow_never_ends("flights.month")``.

        A wait for such a workflow does not sleep: it times out at once.

        :param name: the key of a registered workflow, or the name of a graph.
        :param kwargs: only registered workflows with these parameters, among others.
        """
        self._declare(name, kwargs, Outcome(state=TaskState.RUNNING), is_workflow=True)

    # -- logs, progress and queues -----------------------------------------------------------------------------------

    def logs(self, task_name: str, lines: Sequence[str], *, level: str = "INFO") -> None:
        """
        Tasks of this name write these lines when they run: ``horsies.logs("sales.load", ["3 rows"])``.

        :param task_name: the name under which the task is registered on the workers.
        :param lines: the lines; they follow those of earlier calls.
        :param level: their level.
        """
        self._plan.lines.setdefault(task_name, []).extend((level, line) for line in lines)

    def progress(self, task_name: str, done: int, total: int | None = None, *, stage: str | None = None) -> None:
        """
        Running tasks of this name report this progress: ``horsies.progress("sales.slow", 4, 10)``.

        :param task_name: the name under which the task is registered on the workers.
        :param done: how much is done.
        :param total: how much there is to do, if known.
        :param stage: the current stage.
        """
        self._plan.progress[task_name] = Progress(attempt=1, done=done, total=total, stage=stage)

    def queue(self, name: str, *, ready: int = 0, workers: int = 1) -> None:
        """
        The state of a queue for sensors, and whether its tasks are started: ``horsies.queue("gpu", workers=0)``.

        :param name: the name of the queue.
        :param ready: how many other tasks wait there.
        :param workers: how many live workers serve it. Undeclared queues are served.
        """
        self._plan.queues[name] = make_queue(name, ready=ready, workers=workers)

    # -- what was sent -----------------------------------------------------------------------------------------------

    def sent(self, task_name: str) -> list[dict[str, Any]]:
        """
        The arguments of each task of this name, in the order of sending.

        .. code-block:: python

            assert horsies.sent("sales.load") == [{"day": "2026-01-01"}]

        :param task_name: the name under which the task is registered on the workers.
        """
        return [dict(task.kwargs) for _, task in self._tasks(task_name)]

    def signals(self, name: str) -> list[Any]:
        """
        The payload of each signal of this name, in the order of sending.

        .. code-block:: python

            assert horsies.signals("approved") == [{"by": "anna"}]

        :param name: the name of the signal.
        """
        return [json.loads(payload) for sent, payload in self.memory.signals if sent.name == name]

    def specs(self, task_name: str) -> list[TaskSpec]:
        """
        The specs of these tasks, with queue, priority, retry policy, deadlines and keys.

        .. code-block:: python

            (spec,) = horsies.specs("sales.load")
            assert spec.queue == "spark"

        :param task_name: the name under which the task is registered on the workers.
        """
        return [task.spec for _, task in self._tasks(task_name)]

    def tasks(self, task_name: str) -> list[TaskView]:
        """
        The tasks of this name, with state, result and attempts.

        .. code-block:: python

            (task,) = horsies.tasks("sales.fetch")
            assert [attempt.outcome for attempt in task.attempts] == ["FAILED", "FAILED", "COMPLETED"]

        :param task_name: the name under which the task is registered on the workers.
        """
        return [memory.tasks[task.id] for memory, task in self._tasks(task_name)]

    def started(self, workflow: str) -> list[dict[str, Any]]:
        """
        The parameters of each registered workflow of this name, in the order of starting.

        .. code-block:: python

            assert horsies.started("flights.month") == [{"year": 2013, "month": 1}]

        :param workflow: the key of the registered workflow.
        """
        return [dict(task.kwargs) for _, task in self._plan.sent if task.graph and task.spec.task_name == workflow]

    def graphs(self, name: str) -> list[Graph]:
        """
        What was started of workflows of this name: their nodes with arguments, queues and deadlines.

        .. code-block:: python

            (graph,) = horsies.graphs("sales")
            assert graph.nodes["fetch"].kwargs == {"day": "2026-01-01"}

        :param name: the key of a registered workflow, or the name of a graph.
        """
        return [task.graph for _, task in self._plan.sent if task.graph and task.spec.task_name == name]

    # -- internals ---------------------------------------------------------------------------------------------------

    def find_client(self, hook: HorsiesHook) -> FakeClient:
        """
        The client of a hook: ``horsies.find_client(HorsiesHook())``.

        :param hook: the hook. Hooks with the same connection id share their tables.
        """
        with self._plan.lock:
            if hook not in self._clients:
                ledger = self._find_ledger(hook.horsies_conn_id)
                self._clients[hook] = FakeClient(hook.settings, memory=ledger.memory, ledger=ledger)
            return self._clients[hook]

    def _tasks(self, name: str) -> list[tuple[Memory, NewTask]]:
        return [(memory, task) for memory, task in self._plan.sent if not task.graph and task.spec.task_name == name]

    def _find_ledger(self, conn_id: str) -> FakeLedger:
        with self._plan.lock:
            if conn_id not in self._ledgers:
                self._ledgers[conn_id] = FakeLedger(Memory(self._plan))
            return self._ledgers[conn_id]

    def _declare(
        self, name: str, kwargs: Mapping[str, Any] | None, outcome: Outcome, *, is_workflow: bool = False
    ) -> None:
        declared = Declared(
            task_name=name, kwargs=as_json(dict(kwargs or {})), outcome=outcome, is_workflow=is_workflow
        )
        with self._plan.lock:
            self._plan.declared.append(declared)


def _checked(value: Any) -> Any:
    """A function is called later. A value must be JSON."""
    return value if callable(value) else as_json(value)
