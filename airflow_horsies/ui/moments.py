"""Signals, waits, callbacks and pauses as a page shows them: masked, and nothing of tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_horsies.core.moments import CallbackRecord, Moments
from airflow_horsies.core.submission import Submission
from airflow_horsies.ui import payloads
from airflow_horsies.ui.answers import shown_text, shown_value

TOO_LONG = "(too long to show here)"


def shown_moments(moments: Moments, rounds: Sequence[Submission]) -> payloads.Moments:
    places = {sent.horsies_task_id: {"life": sent.life, "round": sent.round} for sent in rounds}
    return payloads.Moments(
        signals=[
            payloads.Signal(
                **places[signal.sent_to],
                name=signal.name,
                sent_at=signal.sent_at,
                sent_by=shown_text(signal.sent_by),
                received_at=signal.received_at,
                received_attempt=signal.received_attempt,
                value=_value(signal.payload, is_cut=signal.is_payload_cut),
            )
            for signal in moments.signals
        ],
        waits=[
            payloads.Wait(
                **places[wait.of],
                horsies_task_id=wait.task_id,
                name=wait.name,
                attempt=wait.attempt,
                times=wait.times,
                start=wait.parked_at,
                end=wait.ended_at,
                due_at=wait.due_at,
            )
            for wait in moments.waits
        ],
        callbacks=[_callback(callback) for callback in moments.callbacks],
        pauses=[
            payloads.Pause(
                **places[pause.of],
                workflow_id=pause.workflow_id,
                name=shown_text(pause.name) or "",
                start=pause.since,
                is_inside=pause.workflow_id != pause.of,
            )
            for pause in moments.pauses
        ],
    )


def _callback(callback: CallbackRecord) -> payloads.Callback:
    return payloads.Callback(
        life=callback.life,
        number=callback.number,
        state=callback.state,
        opened_at=callback.opened_at,
        expires_at=callback.expires_at,
        heartbeats=callback.heartbeats,
        heartbeat_at=callback.heartbeat_at,
        closed_at=callback.closed_at,
        answered_from=shown_text(callback.answered_from),
        value=_value(callback.body, is_cut=callback.is_body_cut),
    )


def _value(text: str | None, *, is_cut: bool) -> str | None:
    if is_cut:
        return TOO_LONG
    return None if text is None else shown_value(json.loads(text))
