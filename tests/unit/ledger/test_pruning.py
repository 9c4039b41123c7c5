from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from airflow_horsies.ledger import pruning
from airflow_horsies.ledger.pruning import PrunedPage, PruneRule, prune_page
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, Driven, drive

IDS = [str(uuid.UUID(int=number)) for number in range(1, 4)]
KEPT, GONE, YOUNG = IDS
RULE = PruneRule(older_than=timedelta(days=1))


def prune(rule: PruneRule = RULE, **answers: Any) -> Driven[PrunedPage | None]:
    return drive(
        prune_page(Wire(MOVED), rule, after=None),
        {
            "lock_pruning": [{"locked": True}],
            "read_prunable": [{"horsies_task_id": task_id, "is_old": task_id != YOUNG} for task_id in IDS],
            "moved/read_states": [{"id": KEPT, "status": "COMPLETED"}],
            "find_migrations_table": [{"found": True, "has_min_writer": True}],
            "read_version": [{"version": 7, "min_writer": 4}],
            "prune_lines": [{"pruned": 2}],
            "prune_items": [{"pruned": 3}],
            "prune_tasks": lambda params: [{"pruned": len(params["ids"])}],
            **answers,
        },
    )


def test_what_horsies_no_longer_keeps_goes_and_the_next_page_comes_after() -> None:
    driven = prune()
    assert driven.outcome == PrunedPage(submissions=1, lines=2, last_id=YOUNG)
    assert driven.params("moved/read_states")["ids"] == [KEPT, GONE]
    assert driven.params("prune_lines") == {
        "ids": IDS,
        "gone": [GONE],
        "older_than_seconds": None,
        "limit": pruning.PAGE_LINES,
    }
    assert driven.params("prune_tasks") == {"ids": [GONE], "older_than_seconds": 86_400}


def test_old_lines_go_whatever_became_of_their_task() -> None:
    driven = prune(
        PruneRule(lines_older_than=timedelta(days=14)),
        **{"read_prunable": [{"horsies_task_id": KEPT, "is_old": True}]},
    )
    assert driven.outcome == PrunedPage(lines=2, last_id=KEPT)
    assert driven.params("prune_lines")["older_than_seconds"] == 14 * 86_400
    assert "prune_tasks" not in driven.names


def test_a_page_with_too_many_lines_is_looked_at_again() -> None:
    driven = prune(prune_lines=[{"pruned": pruning.PAGE_LINES}])
    assert driven.outcome == PrunedPage(lines=pruning.PAGE_LINES, last_id=None)
    assert "prune_tasks" not in driven.names


def test_a_page_with_too_many_items_is_looked_at_again() -> None:
    driven = prune(prune_items=[{"pruned": pruning.PAGE_ITEMS}])
    assert driven.outcome == PrunedPage(lines=2, last_id=None)
    assert driven.params("prune_items") == {"gone": [GONE], "limit": pruning.PAGE_ITEMS}
    assert "prune_tasks" not in driven.names


def test_the_end_is_told() -> None:
    driven = prune(read_prunable=[], find_migrations_table=[{"found": False}])
    assert driven.outcome == PrunedPage(is_last=True)
    assert "prune_repairs" not in driven.names


def test_nothing_is_looked_at_while_somebody_else_prunes() -> None:
    driven = prune(lock_pruning=[{"locked": False}])
    assert driven.outcome is None
    assert driven.names == ["limit_pruning", "lock_pruning"]


def test_record_of_a_workflow_is_kept_as_long_as_the_workflow() -> None:
    workflows = {"find_workflows": [{"horsies_task_id": GONE}]}
    kept = prune(**workflows, **{"moved/read_workflow_statuses": [{"id": GONE, "status": "PAUSED"}]})
    assert kept.outcome == PrunedPage(last_id=YOUNG)
    assert "prune_tasks" not in kept.names
    gone = prune(**workflows)
    assert gone.params("prune_tasks")["ids"] == [GONE]
    assert gone.names.index("know_workflows") < gone.names.index("prune_tasks")


def test_no_workflow_is_asked_for_where_none_was_submitted() -> None:
    driven = prune()
    assert driven.params("find_workflows") == {"ids": [GONE]}
    assert not any("workflow_stat" in name for name in driven.names)
