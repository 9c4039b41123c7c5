"""What task instances submit, and how it is found and sent in horsies: tasks, or a workflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Script
from airflow_horsies.ledger.catalog import Gate
from airflow_horsies.ledger.rounds import Finder, Round, TaskFinder
from airflow_horsies.ledger.sharing import lock_keys, reuse_shared
from airflow_horsies.wire import workflows
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.graphs import EncodedWorkflow
from airflow_horsies.wire.reading import FoundCommand
from airflow_horsies.wire.sending import insert_new_tasks
from airflow_horsies.wire.statements import Wire


class Sending(Finder, Protocol):
    """What is submitted, and how it is found and sent.

    :param works: in the order of the items.
    :param tasks: those of them that are tasks.
    """

    works: Sequence[EncodedTask | EncodedWorkflow]
    tasks: Sequence[EncodedTask]

    def lock(self) -> Script[None]:
        """The locks on what others may send, too."""
        ...

    def look(self) -> Script[None]:
        """Look at what the workers know."""
        ...

    def send(
        self, wire: Wire, pending: Sequence[Round], known: dict[str, TaskState], *, is_clear: bool
    ) -> Script[None]:
        """Send what is not known, and put the id that each round uses into it.

        :param known: the states of what exists already, by id.
        :param is_clear: a clear requests the work again, even if another task instance has done it.
        """
        ...


class TaskSending(TaskFinder):
    """Tasks, which may share an idempotency key with those of others.

    :param gate: refuses what no worker would accept; only of what is sent now.
    """

    def __init__(self, tasks: Sequence[EncodedTask], gate: Gate | None = None) -> None:
        self.works: Sequence[EncodedTask | EncodedWorkflow] = tasks
        self.tasks = tasks
        self._gate = gate

    def lock(self) -> Script[None]:
        yield from lock_keys(self.tasks)

    def look(self) -> Script[None]:
        if self._gate is not None:
            yield from self._gate.look((task.queue_name, task.task_name) for task in self.tasks)

    def send(
        self, wire: Wire, pending: Sequence[Round], known: dict[str, TaskState], *, is_clear: bool
    ) -> Script[None]:
        replayed = yield from reuse_shared(wire, pending, known, is_clear=is_clear)
        tasks = [round_.task for round_ in pending if isinstance(round_.task, EncodedTask)]
        new = [task for task in tasks if task.id not in known and task.id not in replayed]
        if self._gate is not None:
            self._gate.require(new)
        yield from insert_new_tasks(wire, new)
        for round_ in pending:
            round_.horsies_task_id = replayed.get(round_.task.id, round_.task.id)


class WorkflowSending:
    """A workflow."""

    def __init__(self, workflow: EncodedWorkflow) -> None:
        self.works: Sequence[EncodedTask | EncodedWorkflow] = [workflow]
        self.tasks: Sequence[EncodedTask] = ()

    def find(self, wire: Wire, ids: Sequence[str]) -> Script[dict[str, FoundCommand]]:
        states = yield from workflows.read_statuses(wire, ids)
        return {workflow_id: FoundCommand(state.as_task_state, ()) for workflow_id, state in states.items()}

    def require_same_work(self, wire: Wire, round_: Round, found: FoundCommand) -> Script[None]:
        # No other workflow has an id that is derived from this work.
        return
        yield

    def lock(self) -> Script[None]:
        return
        yield

    def look(self) -> Script[None]:
        return
        yield

    def send(
        self, wire: Wire, pending: Sequence[Round], known: dict[str, TaskState], *, is_clear: bool
    ) -> Script[None]:
        for round_ in pending:
            workflow = round_.task
            round_.horsies_task_id = workflow.id
            if isinstance(workflow, EncodedWorkflow) and workflow.id not in known:
                yield from workflows.start_workflow(wire, workflow)
