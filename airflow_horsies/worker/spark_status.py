"""What Spark's own status store says of a task's jobs: how far they are, and what they have used.

Every question to the JVM costs a round trip, so whole lists come back as JSON, written by Spark's own writer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

# From here on it is cheaper to ask for all that Spark remembers.
ASK_ONE_BY_ONE = 20
FLUSH_MS = 1_000

# Our name for a figure, and Spark's.
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


class SparkStatus:
    """The status store of one SparkContext; works without Spark's web pages."""

    def __init__(self, context: Any) -> None:
        jvm = context._jvm
        self._context = context._jsc.sc()
        self._tracker = context._jsc.statusTracker()
        self._store = self._context.statusStore()
        self._mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        self._arrays = jvm.java.util.Arrays
        self._new_list = jvm.java.util.ArrayList
        self._running = jvm.java.util.ArrayList()
        self._running.add(jvm.org.apache.spark.JobExecutionStatus.RUNNING)

    def progress(self) -> tuple[int, int, str] | None:
        """Tasks done, tasks known, and a text, over the jobs that run now."""
        jobs = self._read(self._store.jobsList(self._running))
        total = sum(job["numTasks"] for job in jobs)
        if not total:
            return None
        done = sum(job["numCompletedTasks"] + job["numSkippedTasks"] for job in jobs)
        stages = sum(len(job["stageIds"]) for job in jobs)
        stages_done = sum(job["numCompletedStages"] + job["numSkippedStages"] for job in jobs)
        return done, total, f"Spark: {stages_done} of {stages} stages, {done} of {total} tasks"

    def metrics(self, job_group: str) -> dict[str, float]:
        """Totals over the jobs of a group."""
        self._context.listenerBus().waitUntilEmpty(FLUSH_MS)
        job_ids = json.loads(self._arrays.toString(self._tracker.getJobIdsForGroup(job_group)))
        if not job_ids:
            return {}
        ran = [job for job in self._jobs(job_ids) if job["numCompletedTasks"] or job["numFailedTasks"]]
        stage_ids = {stage for job in ran for stage in job["stageIds"]}
        stages = [stage for stage in self._stages(stage_ids) if stage["numCompleteTasks"] or stage["numFailedTasks"]]
        return {"jobs": len(job_ids), "stages": len(stages), **summed(stages)}

    def _jobs(self, job_ids: list[int]) -> list[Any]:
        if len(job_ids) <= ASK_ONE_BY_ONE:
            return self._some(self._store.job, job_ids)
        wanted = set(job_ids)
        return [job for job in self._read(self._store.jobsList(None)) if job["jobId"] in wanted]

    def _stages(self, stage_ids: set[int]) -> list[Any]:
        if len(stage_ids) <= ASK_ONE_BY_ONE:
            return self._some(self._store.lastStageAttempt, stage_ids)
        no_quantiles = getattr(self._store, "stageList$default$4")()
        found = self._read(self._store.stageList(None, False, False, no_quantiles, None))
        return [stage for stage in found if stage["stageId"] in stage_ids]

    def _some(self, ask: Any, ids: Iterable[int]) -> list[Any]:
        found = self._new_list()
        for number in ids:
            found.add(ask(number))
        return self._read(found)

    def _read(self, values: Any) -> list[Any]:
        read: list[Any] = json.loads(self._mapper.writeValueAsString(values))
        return read


def summed(stages: Iterable[Any]) -> dict[str, float]:
    """The figures of stages as one; those that are nothing are left out."""
    stages = list(stages)
    totals: dict[str, float] = {name: sum(stage[theirs] for stage in stages) for name, theirs in SUMMED.items()}
    totals["executor_seconds"] = round(sum(stage["executorRunTime"] for stage in stages) / 1e3, 3)
    totals["executor_cpu_seconds"] = round(sum(stage["executorCpuTime"] for stage in stages) / 1e9, 3)
    totals["gc_seconds"] = round(sum(stage["jvmGcTime"] for stage in stages) / 1e3, 3)
    totals["peak_memory_bytes"] = max((stage["peakExecutionMemory"] for stage in stages), default=0)
    return {name: value for name, value in totals.items() if value}
