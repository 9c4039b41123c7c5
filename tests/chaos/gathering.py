"""Reads from the databases, and from the files that tasks and submitters leave, what the rules are checked against."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from airflow_horsies.embedded.process import is_free
from tests.chaos import BATCH_SIZE, DAG_ID, LIGHT_DAG_ID
from tests.chaos.invariants import Facts, History, Instance, Outcome, Row, Sent, Violation
from tests.chaos.load import AirflowLoad, LightLoad
from tests.chaos.stack import Stack

WATCH_SECONDS = 3.0
LEAVE_SECONDS = 15.0

# Written once. The attempts of a live task have a table of their own, those of one that ended are one value of its row.
ATTEMPTS = """
SELECT a.task_id || '/' || a.attempt, jsonb_build_array(
    a.attempt, a.outcome, a.will_retry,
    floor(extract(epoch FROM a.started_at) * 1000000)::bigint,
    floor(extract(epoch FROM a.finished_at) * 1000000)::bigint,
    a.error_code, a.error_message, a.failed_reason, a.worker_id, a.worker_hostname, a.worker_pid, a.worker_process_name
)::text
FROM horsies_task_attempts AS a
UNION ALL
SELECT h.task_id || '/' || (a.fields ->> 0), a.fields::text
FROM horsies_task_history AS h
CROSS JOIN LATERAL jsonb_array_elements(convert_from(h.attempt_snapshot, 'UTF8')::jsonb) AS a (fields)
"""
WRITTEN_ONCE = {
    "attempt": ATTEMPTS,
    "ended task": "SELECT task_id::text, status || ' ' || md5(h::text) FROM horsies_task_history AS h",
    "submission": "SELECT horsies_task_id::text, md5(s::text) FROM airflow_horsies.submissions AS s",
    "signal": "SELECT id::text, md5(s::text) FROM airflow_horsies.signals AS s",
    "attempt's own record": (
        "SELECT horsies_task_id || '/' || attempt, a::text FROM airflow_horsies.attempts AS a "
        "WHERE finished_at IS NOT NULL"
    ),
}


class Watcher(threading.Thread):
    """Looks again and again at what is written once."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(name="watcher", daemon=True)
        self.history = History()
        self._stack = stack
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(WATCH_SECONDS):
            for kind, query in WRITTEN_ONCE.items():
                with suppress(psycopg.Error):
                    self.history.see(kind, dict(self._stack.query(query)), time.monotonic())

    def end(self) -> list[Violation]:
        """What changed, also since the last look, or is gone."""
        self._ending.set()
        self.join()
        for kind, query in WRITTEN_ONCE.items():
            self.history.must_have_all(kind, dict(self._stack.query(query)))
        return self.history.violations


def gather(stack: Stack, light: LightLoad, airflow: AirflowLoad | None) -> Facts:
    now = time.monotonic()
    sent = [
        Sent((dag_id, run_id, task_id, map_index), position, life, round_, horsies_task_id, now - age)
        for dag_id, run_id, task_id, map_index, position, life, round_, horsies_task_id, age in stack.query(
            "SELECT dag_id, run_id, task_id, map_index, position, life, round, horsies_task_id::text, "
            "extract(epoch FROM clock_timestamp() - submitted_at)::float FROM airflow_horsies.submissions"
        )
    ]
    rows = [
        Row(task_id, status, _value(result))
        for task_id, status, result in stack.query(
            "SELECT id::text, status::text, result FROM horsies_tasks UNION ALL "
            "SELECT task_id::text, status::text, convert_from(result_payload, 'UTF8') FROM horsies_task_history"
        )
    ]
    outcomes = [*_light_outcomes(light), *(_airflow_outcomes(stack) if airflow is not None else ())]
    acknowledged = {task_id: at for each in light.lights for task_id, at in each.acknowledged.items()}
    failures = {
        key: (str(attempt[5]), str(attempt[6]))
        for key, attempt in ((key, json.loads(text)) for key, text in stack.query(ATTEMPTS))
        if attempt[5] is not None
    }
    return Facts(sent, rows, outcomes, acknowledged, _last_beats(stack.folder / "beats"), failures)


def _value(result: str | None) -> Any:
    return None if result is None else json.loads(result).get("ok")


def _light_outcomes(light: LightLoad) -> Iterator[Outcome]:
    for each in light.lights:
        instance: Instance = (LIGHT_DAG_ID, each.run_id, each.mode, -1)
        size = BATCH_SIZE if each.mode == "batch" else 1
        for life in each.lives:
            said = f"in try {each.try_number}, {each.role}"
            yield Outcome(instance, life, life in each.values, each.values.get(life), size, said)


def _airflow_outcomes(stack: Stack) -> Iterator[Outcome]:
    values = {
        (run_id, task_id): value
        for run_id, task_id, value in stack.query_airflow(
            "SELECT run_id, task_id, value FROM xcom WHERE dag_id = %s AND key = 'return_value'", DAG_ID
        )
    }
    sizes = {"batch": BATCH_SIZE, "sensor": None}
    for run_id, task_id, map_index, state, try_number in stack.query_airflow(
        "SELECT run_id, task_id, map_index, state, try_number FROM task_instance WHERE dag_id = %s", DAG_ID
    ):
        yield Outcome(
            (DAG_ID, run_id, task_id, map_index),
            1,
            state == "success",
            values.get((run_id, task_id)),
            sizes.get(task_id, 1),
            f"Airflow says {state}, try {try_number}",
        )


def _last_beats(folder: Path) -> dict[str, float]:
    last: dict[str, float] = {}
    for path in folder.iterdir():
        task_id = path.name.partition(".")[0]
        # Empty where its writer was killed in between.
        with suppress(ValueError):
            last[task_id] = max(float(path.read_text()), last.get(task_id, 0.0))
    return last


def left_in_database(stack: Stack) -> Iterator[Violation]:
    """What clients that have all ended left on the server."""
    rule = "nothing left behind"
    asked = {
        "a backend": (
            "SELECT application_name || ' ' || coalesce(query, '') FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ),
        "an advisory lock": "SELECT pid::text || ' ' || objid FROM pg_locks WHERE locktype = 'advisory'",
        "a prepared transaction": "SELECT gid FROM pg_prepared_xacts",
    }
    for what, query in asked.items():
        give_up = time.monotonic() + LEAVE_SECONDS
        # The server hears of the end of a killed client when it next writes to it.
        while (found := stack.query(query)) and time.monotonic() < give_up:
            time.sleep(0.2)
        for (said,) in found:
            yield Violation(rule, what, said)


def left_on_machine(folder: Path, ports: list[tuple[str, int]]) -> Iterator[Violation]:
    rule = "nothing left behind"
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid == psutil.Process().pid:
                continue
            if process.environ().get("CHAOS_FOLDER") == str(folder) or str(folder) in " ".join(process.cmdline()):
                yield Violation(rule, "a process", f"{process.pid} {' '.join(process.cmdline())[:200]}")
    for address, port in ports:
        if not is_free(port):
            yield Violation(rule, "a listening socket", f"{address}:{port}")
    for path in (folder / "tmp").rglob("*"):
        yield Violation(rule, "a temporary file", str(path.relative_to(folder)))
