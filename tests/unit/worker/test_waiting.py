from __future__ import annotations

from datetime import timedelta

import pytest

pytest.importorskip("horsies")

from horsies import RetryPolicy

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.worker import horsies_app, python_task, signal_node, sleep_node
from airflow_horsies.worker.waiting import with_parking

URL = "postgresql+psycopg://worker:secret@db/horsies"


def test_a_task_that_parks_has_a_policy_for_it() -> None:
    assert with_parking({})["retry_policy"].auto_retry_for == ["AWAITING_SIGNAL"]
    own = RetryPolicy.fixed([1, 2], auto_retry_for=["FLAKY"])
    policy = with_parking({"retry_policy": own, "queue_name": "q"})["retry_policy"]
    assert (policy.auto_retry_for, policy.max_retries) == (["FLAKY", "AWAITING_SIGNAL"], 2)
    assert own.auto_retry_for == ["FLAKY"]
    assert with_parking({"retry_policy": policy})["retry_policy"] is policy


def test_every_app_has_the_ready_made_tasks() -> None:
    app = horsies_app(URL, queues="spark")

    @python_task(app, "own", parks=True)
    def own() -> None:
        return

    for name in ("airflow_horsies.wait_for_signal", "airflow_horsies.sleep", "own"):
        assert name in app.tasks


def test_nodes_have_checked_arguments() -> None:
    app = horsies_app(URL)
    waits = signal_node(app, "approved", timeout=timedelta(hours=1), node_id="approved")
    assert (waits.kwargs, waits.node_id) == ({"name": "approved", "timeout_seconds": 3600.0}, "approved")
    assert sleep_node(app, 30, waits_for=[waits]).kwargs == {"seconds": 30.0}
    with pytest.raises(InvalidTask, match="is not the name of a signal"):
        signal_node(app, "not a name")
