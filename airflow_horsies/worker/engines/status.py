"""Progress and metrics of a task's jobs, from Spark's status store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from airflow_horsies.borrowed import pyspark as borrowed

FLUSH_MS = 1_000

# Our name of a metric, and Spark's.
SUMMED = {
    "tasks": "numCompleteTasks",
    "failed_tasks": "numFailedTasks",
    "input_rows": "inputRecords",
    "input_bytes": "inputBytes",
    "output_rows": "outputRecords",
    "output_bytes": "outputBytes",
    "shuffle_read_bytes": "shuffleReadBytes",
    "shuffle_write_bytes": "shuffleWriteBytes",
    "spill_memory_bytes": "memoryBytesSpilled",
    "spill_disk_bytes": "diskBytesSpilled",
}
# In Spark's own units: milliseconds, nanoseconds, bytes.
FURTHER = ("executorRunTime", "executorCpuTime", "jvmGcTime", "peakExecutionMemory")


class SparkStatus:
    """The status store of one SparkContext; works without Spark's web UI."""

    def __init__(self, context: Any) -> None:
        jvm = borrowed.jvm_of(context)
        self._context = borrowed.scala_context(context)
        self._tracker = borrowed.java_context(context).statusTracker()
        self._store = self._context.statusStore()
        self._mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        self._arrays = jvm.java.util.Arrays
        self._running = jvm.java.util.ArrayList()
        self._running.add(jvm.org.apache.spark.JobExecutionStatus.RUNNING)

    def progress(self) -> tuple[int, int, str] | None:
        """Spark tasks done, Spark tasks known, and a text, for the running jobs."""
        jobs = self._read(self._store.jobsList(self._running))
        total = sum(job["numTasks"] for job in jobs)
        if not total:
            return None
        done = sum(job["numCompletedTasks"] + job["numSkippedTasks"] for job in jobs)
        stages = sum(len(job["stageIds"]) for job in jobs)
        stages_done = sum(job["numCompletedStages"] + job["numSkippedStages"] for job in jobs)
        return done, total, f"Spark: {stages_done} of {stages} stages, {done} of {total} tasks"

    def metrics(self, job_group: str) -> dict[str, float]:
        """Totals over the jobs of a group.

        Uses many small requests: a large response would take forty milliseconds, due to delayed acknowledgements.
        """
        self._context.listenerBus().waitUntilEmpty(FLUSH_MS)
        job_ids = json.loads(self._arrays.toString(self._tracker.getJobIdsForGroup(job_group)))
        if not job_ids:
            return {}
        stage_ids = {stage for job in job_ids for stage in self._stages_of(job)}
        stages = [figures for stage in stage_ids if (figures := self._metrics_of(stage))]
        return {"jobs": len(job_ids), "stages": len(stages), **summed(stages)}

    def _stages_of(self, job_id: int) -> list[int]:
        # Spark discards the oldest jobs.
        with suppress(Py4JError):
            stages: list[int] = json.loads(self._store.job(job_id).stageIds().mkString("[", ",", "]"))
            return stages
        return []

    def _metrics_of(self, stage_id: int) -> dict[str, float] | None:
        """The metrics of a stage; None if it was skipped."""
        with suppress(Py4JError):
            stage = self._store.lastStageAttempt(stage_id)
            if stage.numCompleteTasks() or stage.numFailedTasks():
                return {name: getattr(stage, name)() for name in (*SUMMED.values(), *FURTHER)}
        return None

    def _read(self, values: Any) -> list[Any]:
        read: list[Any] = json.loads(self._mapper.writeValueAsString(values))
        return read


def summed(stages: Iterable[Any]) -> dict[str, float]:
    """The sums over stages, without those that are zero."""
    stages = list(stages)
    totals: dict[str, float] = {name: sum(stage[theirs] for stage in stages) for name, theirs in SUMMED.items()}
    totals["executor_seconds"] = round(sum(stage["executorRunTime"] for stage in stages) / 1e3, 3)
    totals["executor_cpu_seconds"] = round(sum(stage["executorCpuTime"] for stage in stages) / 1e9, 3)
    totals["gc_seconds"] = round(sum(stage["jvmGcTime"] for stage in stages) / 1e3, 3)
    totals["peak_memory_bytes"] = max((stage["peakExecutionMemory"] for stage in stages), default=0)
    return {name: value for name, value in totals.items() if value}
