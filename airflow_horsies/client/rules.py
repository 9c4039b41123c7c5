"""The rules of sending and submitting that need no database, for tables that are kept elsewhere."""

from __future__ import annotations

from airflow_horsies.ledger.identity import (
    NO_LONGER_REQUESTED,
    Item,
    Submitter,
    UnknownRunKey,
    continues_life,
    follows_success,
    is_of_same_try,
    items_of,
)
from airflow_horsies.ledger.repairing import repairs_by_setting
from airflow_horsies.ledger.rounds import needs_next_round
from airflow_horsies.ledger.sharing import key_of_other_work
from airflow_horsies.ledger.submitting import make_result, require_derived_ids
from airflow_horsies.wire.cancelling import not_to_be_cancelled
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.reading import FoundCommand, is_same_command
from airflow_horsies.wire.sending import (
    id_in_use,
    key_in_use,
    key_of_other_command,
    require_distinct_ids,
    require_distinct_keys,
    require_same_command,
)

__all__ = [
    "NO_LONGER_REQUESTED",
    "EncodedTask",
    "FoundCommand",
    "Item",
    "Submitter",
    "UnknownRunKey",
    "continues_life",
    "follows_success",
    "id_in_use",
    "is_of_same_try",
    "is_same_command",
    "items_of",
    "key_in_use",
    "key_of_other_command",
    "key_of_other_work",
    "make_result",
    "needs_next_round",
    "not_to_be_cancelled",
    "repairs_by_setting",
    "require_derived_ids",
    "require_distinct_ids",
    "require_distinct_keys",
    "require_same_command",
]
