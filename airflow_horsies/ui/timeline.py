"""The history of a submitted task as segments: it waits, is claimed, runs, backs off."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import zip_longest

from airflow_horsies.core.attempts import PARKED, ShownAttempt
from airflow_horsies.core.submission import Submission
from airflow_horsies.core.task import TaskView
from airflow_horsies.ui.airflow_side import MAX_TRIES, AirflowTry
from airflow_horsies.ui.payloads import Segment, SegmentKind


def lost_tries(tries: Sequence[AirflowTry], submissions: Collection[Submission]) -> list[AirflowTry]:
    """Tries that submitted but that Airflow lost without a record. Each ends when the next one begins."""
    known = sorted(tries, key=lambda item: item.number)
    sent_at: dict[int, datetime] = {}
    for item in submissions:
        sent_at[item.try_number] = min(item.submitted_at, sent_at.get(item.try_number, item.submitted_at))
    # Airflow may have more tries than were read.
    first = known[0].number if len(known) >= MAX_TRIES else 0
    lost: list[AirflowTry] = []
    for number in sorted(number for number in sent_at.keys() - {item.number for item in known} if number > first):
        following = [item.started_at for item in known if item.number > number and item.started_at]
        # A run that was deleted and recreated counts its tries from 1 again.
        if following and following[0] > sent_at[number]:
            lost.append(AirflowTry(number=number, state="lost", started_at=sent_at[number], ended_at=following[0]))
    return lost


def segments(submission: Submission, task: TaskView | None, attempts: Sequence[ShownAttempt]) -> list[Segment]:
    """What the task did and when, without gaps, from its submission on."""
    if task is None:
        return []
    pieces: list[Segment] = []
    kind: SegmentKind = "waiting"
    since = submission.submitted_at
    for attempt, following in zip_longest(attempts, attempts[1:]):
        pieces += _pause(kind, since, attempt.started_at, task.claimed_at)
        # The end of an attempt whose process was killed is unknown: it is the time of the next event.
        over = attempt.finished_at or (following.started_at if following else task.finished_at)
        pieces.append(
            Segment(kind="running", start=attempt.started_at, end=over, attempt=attempt.number, outcome=attempt.outcome)
        )
        if over is None:
            return pieces
        kind, since = "parked" if attempt.outcome == PARKED else "backing off", over
    if task.state.is_terminal:
        if not attempts:
            pieces += _pause(kind, since, task.finished_at or since, None)
        return pieces
    return pieces + _pause(kind, since, None, task.claimed_at)


def _pause(kind: SegmentKind, since: datetime, until: datetime | None, claimed_at: datetime | None) -> list[Segment]:
    if until is not None and until <= since:
        return []
    if claimed_at is None or claimed_at < since or (until is not None and claimed_at > until):
        return [Segment(kind=kind, start=since, end=until)]
    return [Segment(kind=kind, start=since, end=claimed_at), Segment(kind="claimed", start=claimed_at, end=until)]
