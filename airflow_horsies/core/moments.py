"""What happened around the tasks of a task instance: signals, waits, callbacks and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_horsies.core.callback import CallbackState


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecord:
    """A signal, and who has received it.

    :param sent_to: the submission that it concerns: the id of its task or of its workflow.
    :param payload: as JSON; None unless asked for, and if it is long.
    :param is_payload_cut: whether the payload was left out because of its length.
    """

    sent_to: str
    name: str
    sent_at: datetime
    sent_by: str
    received_at: datetime | None
    received_attempt: int | None
    payload: str | None = None
    is_payload_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRecord:
    """A wait of a task that has parked, in its last attempt.

    :param of: the submission that it concerns.
    :param task_id: the task that waits; of a workflow, that of a node.
    :param name: of the signal; None for a timer.
    :param times: how many attempts have parked in this wait.
    :param ended_at: when the signal was received, the time was over, or the task ended; None while it waits.
    """

    of: str
    task_id: str
    name: str | None
    attempt: int
    times: int
    parked_at: datetime
    due_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackRecord:
    """A callback; nothing of its tokens.

    :param answered_from: the address of the outside party.
    :param body: the answer, as ``payload`` of a signal.
    """

    life: int
    number: int
    state: CallbackState
    opened_at: datetime
    expires_at: datetime
    heartbeats: int
    heartbeat_at: datetime | None
    closed_at: datetime | None
    answered_from: str | None
    body: str | None = None
    is_body_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRecord:
    """A workflow that is paused now; horsies does not record earlier pauses.

    :param of: the submission that it concerns.
    :param workflow_id: the paused workflow: the submitted one, or one inside it.
    """

    of: str
    workflow_id: str
    name: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The newest of each, in the order of time."""

    signals: tuple[SignalRecord, ...] = ()
    waits: tuple[WaitRecord, ...] = ()
    callbacks: tuple[CallbackRecord, ...] = ()
    pauses: tuple[PauseRecord, ...] = ()
