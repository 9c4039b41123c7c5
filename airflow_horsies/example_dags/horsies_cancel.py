"""Send without waiting, and cancel what was sent."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_horsies.operators import HorsiesCancelOperator, HorsiesOperator


@dag(schedule=None, tags=["horsies"])
def horsies_cancel():
    send = HorsiesOperator(
        task_id="send",
        task_name="sample.add",
        kwargs={"a": 1, "b": 1},
        delay=timedelta(hours=1),
        wait_for_completion=False,
    )
    HorsiesCancelOperator(task_id="cancel", horsies_task_ids=send.output)


horsies_cancel()
