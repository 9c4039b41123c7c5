"""A process dies at the point it was told to, and at no other."""

from __future__ import annotations

import os
import signal

from airflow_horsies.db.statement import sql_text
from airflow_horsies.ledger.schema import PACKAGE
from tests.chaos.plan import STATEMENTS
from tests.chaos.points import COMMIT, Death, name_of, names


def test_statements_are_named_after_their_files() -> None:
    assert name_of(sql_text(PACKAGE, "lock_task_instance")) == "lock_task_instance"
    assert name_of(sql_text("airflow_horsies.wire", "moved/enqueue_tasks").encode()) == "enqueue_tasks"
    assert name_of("LISTEN task_done") == "LISTEN"


def test_every_statement_of_the_plan_exists() -> None:
    known = {*names().values(), COMMIT, "LISTEN"}
    assert {each for statements in STATEMENTS.values() for each in statements} <= known


def test_death_comes_at_its_point_and_occurrence() -> None:
    child = os.fork()
    if child == 0:
        death = Death()
        death.at("after COMMIT", 2)
        for point in ("before COMMIT", "after COMMIT", "before COMMIT"):
            death.reached(point)
        death.reached("after COMMIT")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_whoever_is_to_die_nowhere_lives() -> None:
    death = Death()
    death.at(None)
    death.reached("before COMMIT")
