"""Wait for what somebody else sent: by ids, in each of Airflow's ways to wait, and by the sending task instance."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_horsies.operators import HorsiesOperator
from airflow_horsies.sensors import HorsiesQueueSensor, HorsiesSensor

PATIENCE = {"poke_interval": 1, "timeout": 300}
# A task that is rescheduled leaves its slot in between, and Airflow needs some seconds for that.
RESCHEDULED = {"mode": "reschedule", "poke_interval": 10, "timeout": 300}


@dag(schedule=None, tags=["horsies"])
def horsies_sensor():
    room = HorsiesQueueSensor(task_id="room_for_more", queue="default", max_depth=1_000, deferrable=True, **PATIENCE)
    send = HorsiesOperator(
        task_id="send",
        task_name="sample.add",
        kwargs={"a": 40, "b": 2},
        delay=timedelta(seconds=5),
        wait_for_completion=False,
    )
    room >> send
    HorsiesSensor(task_id="deferred", task_ids=send.output, deferrable=True, **PATIENCE)
    HorsiesSensor(task_id="poked", task_ids=send.output, mode="poke", **PATIENCE)
    HorsiesSensor(task_id="rescheduled", task_ids=[send.output], **RESCHEDULED)
    # Mostly this names another DAG, whose run has the same id or the one given as external_run_id.
    HorsiesSensor(
        task_id="by_submission",
        external_dag_id="{{ dag.dag_id }}",
        external_task_id="send",
        **RESCHEDULED,
    )


horsies_sensor()
