"""What is recorded of signals, waits and callbacks, for display: the newest, in the order of time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_horsies.core.callback import CallbackState
from airflow_horsies.core.moments import CallbackRecord, SignalRecord, WaitRecord
from airflow_horsies.core.signals import TIMER
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.db.statement import Row, Script, Statement, sql_text
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.ledger.schema import PACKAGE

# The first version of the ledger with all of it.
SINCE = 10
MAX_SHOWN = 100
# Of a payload or an answer that is shown.
PAYLOAD_BYTES = 4_000


@dataclass(frozen=True, slots=True)
class Recorded:
    signals: tuple[SignalRecord, ...] = ()
    waits: tuple[WaitRecord, ...] = ()
    callbacks: tuple[CallbackRecord, ...] = ()


def read_recorded(
    deployment: Deployment, key: TaskInstanceKey, owners: Mapping[str, str], *, with_values: bool
) -> Script[Recorded]:
    """
    :param owners: the submission of each task or workflow, by id.
    :param with_values: with short payloads and answers.
    """
    sizes = {"limit": MAX_SHOWN, "payload_bytes": PAYLOAD_BYTES if with_values else -1}
    waits: list[WaitRecord] = []
    signals: list[Row] = []
    known = dict(owners)
    if owners:
        for row in (yield Statement(sql_text(PACKAGE, "read_waits"), {"targets": sorted(owners), "limit": MAX_SHOWN})):
            owner = _owner_of(row["targets"], owners)
            # A signal may also be sent to the task of a node.
            known.setdefault(row["horsies_task_id"], owner)
            waits.append(_decode_wait(row, owner))
        signals = list((yield Statement(sql_text(PACKAGE, "read_signals"), {**sizes, "targets": sorted(known)})))
    callbacks = yield Statement(sql_text(PACKAGE, "read_callbacks_of_instance"), {**deployment.params(key), **sizes})
    return Recorded(
        signals=tuple(_decode_signal(row, known[row["target"]], with_values) for row in reversed(signals)),
        waits=tuple(reversed(waits)),
        callbacks=tuple(_decode_callback(row, with_values) for row in reversed(callbacks)),
    )


def _owner_of(targets: Collection[str], owners: Mapping[str, str]) -> str:
    return next(owners[target] for target in targets if target in owners)


def _decode_signal(row: Row, owner: str, with_values: bool) -> SignalRecord:
    return SignalRecord(
        sent_to=owner,
        name=row["name"],
        sent_at=row["sent_at"].astimezone(UTC),
        sent_by=row["sent_by"],
        received_at=_utc(row["consumed_at"]),
        received_attempt=row["consumed_attempt"],
        payload=row["payload"],
        is_payload_cut=with_values and row["is_payload_cut"],
    )


def _decode_wait(row: Row, owner: str) -> WaitRecord:
    return WaitRecord(
        of=owner,
        task_id=row["horsies_task_id"],
        name=None if row["name"] == TIMER else row["name"],
        attempt=row["attempt"],
        times=row["times"],
        parked_at=row["parked_at"].astimezone(UTC),
        due_at=_utc(row["due_at"]),
        ended_at=_utc(row["consumed_at"]),
    )


def _decode_callback(row: Row, with_values: bool) -> CallbackRecord:
    state = CallbackState.OPEN if row["outcome"] is None else CallbackState(row["outcome"])
    expires_at = row["expires_at"].astimezone(UTC)
    return CallbackRecord(
        life=row["life"],
        number=row["number"],
        # Nobody has looked at it since.
        state=CallbackState.EXPIRED if row["is_over"] else state,
        opened_at=row["created_at"].astimezone(UTC),
        expires_at=expires_at,
        heartbeats=row["heartbeats"],
        heartbeat_at=_utc(row["heartbeat_at"]),
        closed_at=expires_at if row["is_over"] else _utc(row["completed_at"]),
        answered_from=row["answered_from"],
        body=row["body"],
        is_body_cut=with_values and row["is_body_cut"],
    )


def _utc(instant: datetime | None) -> datetime | None:
    return None if instant is None else instant.astimezone(UTC)
