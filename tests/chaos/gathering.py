"""Reads from the databases, and from the files that tasks and submitters leave, what the rules are checked against."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from airflow_horsies.airflow_instance import RUN_KEY
from airflow_horsies.embedded.process import is_free
from airflow_horsies.models import TaskSpec
from airflow_horsies.wire.encoding import encode_task
from tests.chaos import AIRFLOW_WORK, DAG_ID, LIGHT_DAG_ID
from tests.chaos.airflow_load import AirflowLoad
from tests.chaos.facts import Asked, Facts, Instance, ItemSent, Outcome, Ran, Row, Sent, Violation, Wish
from tests.chaos.invariants import History
from tests.chaos.load import LightLoad
from tests.chaos.played import BATCHES, Item, Life, Light, new_item
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
    # Where an item stands, and whether it is still wanted, may change.
    "submission": (
        "SELECT horsies_task_id || '/' || life, concat_ws(' ', namespace, dag_id, run_id, task_id, map_index, "
        "position, life, round, try_number, run_key, run_started_at, clear_number, max_tries, work, occurrence, "
        "submitted_at) "
        "FROM airflow_horsies.submissions"
    ),
    "chunk": (
        "SELECT horsies_task_id::text, concat_ws(' ', task_name, size, works, occurrences, rounds) "
        "FROM airflow_horsies.chunks"
    ),
    "item": "SELECT horsies_task_id || '/' || number, i::text FROM airflow_horsies.items AS i",
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


def gather(stack: Stack, light: LightLoad, airflow: AirflowLoad | None, history: History) -> Facts:
    now = time.monotonic()
    rows = [
        Row(task_id, status, _value(result), None if age is None else now - age)
        for task_id, status, result, age in stack.query(
            "SELECT id::text, status::text, result, NULL::float FROM horsies_tasks UNION ALL "
            "SELECT task_id::text, status::text, convert_from(result_payload, 'UTF8'), "
            "extract(epoch FROM clock_timestamp() - terminal_at)::float FROM horsies_task_history"
        )
    ]
    outcomes = [*_light_outcomes(light), *(_airflow_outcomes(stack, airflow) if airflow is not None else ())]
    acknowledged = {task_id: at for each in light.lights for task_id, at in each.acknowledged.items()}
    failures = {
        key: (str(attempt[5]), str(attempt[6]))
        for key, attempt in ((key, json.loads(text)) for key, text in stack.query(ATTEMPTS))
        if attempt[5] is not None
    }
    sent = list(_sent(stack, now))
    return Facts(
        sent=sent,
        rows=rows,
        outcomes=outcomes,
        acknowledged=acknowledged,
        last_beats=_last_beats(stack.folder / "beats"),
        failures=failures,
        asked=list(_light_tries(light)),
        wishes=[*_light_wishes(light), *(_airflow_wishes(airflow) if airflow is not None else ())],
        items=list(_items(stack, sent, history)),
        ran=list(_ran(stack.folder / "ran")),
        repaired={
            (_instance(each), life): began
            for each in light.lights
            for life, began in each.lives.items()
            if _keeps(each, life)
        },
        unsure={(_instance(each), life) for each in light.lights for life in each.lives if _keeps(each, life) is None},
    )


SENT = """
SELECT
    dag_id, run_id, task_id, map_index, position, life, round, horsies_task_id::text,
    extract(epoch FROM clock_timestamp() - submitted_at)::float,
    run_key, clear_number, max_tries, encode(work, 'hex'), occurrence, place,
    extract(epoch FROM clock_timestamp() - released_at)::float
FROM airflow_horsies.submissions
ORDER BY submitted_at
"""


CHUNKS = """
SELECT
    chunk.horsies_task_id::text, encode(chunk.works, 'hex'), chunk.occurrences, chunk.rounds, chunk.places,
    coalesce(
        jsonb_object_agg(
            ended.number,
            jsonb_build_array(ended.outcome, ended.value, ended.error_code, ended.error_message)
        ) FILTER (WHERE ended.number IS NOT NULL),
        '{}'
    )
FROM airflow_horsies.chunks AS chunk
LEFT JOIN airflow_horsies.items AS ended USING (horsies_task_id)
GROUP BY chunk.horsies_task_id
"""
HEX_OF_WORK = 64


def _items(stack: Stack, sent: Sequence[Sent], history: History) -> Iterator[ItemSent]:
    """The items of each chunk, once for each life that has it."""
    found = {row[0]: row[1:] for row in stack.query(CHUNKS)}
    for chunk in sent:
        if chunk.task_id not in found:
            continue
        works, occurrences, rounds, places, ended = found[chunk.task_id]
        for number, place in enumerate(places):
            outcome, value, code, message = ended.get(str(number), ("", None, "", ""))
            yield ItemSent(
                chunk,
                number,
                works[number * HEX_OF_WORK : (number + 1) * HEX_OF_WORK],
                occurrences[number] if occurrences else 0,
                rounds[number] if rounds else 1,
                place,
                outcome,
                None if value is None else json.loads(value),
                code or "",
                message or "",
                history.first_seen.get(("item", f"{chunk.task_id}/{number}")),
            )


def _ran(folder: Path) -> Iterator[Ran]:
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            # Cut off where its writer was killed in between.
            with suppress(ValueError):
                said = json.loads(line)
                yield Ran(said["task"], said["claim"], _work("blocking", said["asked"]), said["at"])


def _keeps(light: Light, life: Life) -> bool | None:
    """Whether a life keeps what completed before: at a person's request, or by what all its tries said."""
    settings = {tried.on_clear for tried in light.tries if tried.life == life}
    if life in light.repaired or (settings == {"failed"} and life not in light.unsure):
        return True
    return False if settings <= {"all"} and life not in light.unsure else None


def _sent(stack: Stack, now: float) -> Iterator[Sent]:
    generations = _generations(stack.folder / "runs")
    found = stack.query(SENT)
    known = {(*row[:4], row[5]): row[9] for row in found if row[9] is not None}
    for row in found:
        instance, (position, life, round_, task_id, age) = row[:4], row[4:9]
        run_key, clear_number, max_tries, work, occurrence, place, released = row[9:]
        # Airflow's store may have been out of reach for one of them.
        run_key = run_key or known.get((*instance, life))
        yield Sent(
            instance,
            position,
            life,
            round_,
            task_id,
            now - age,
            key=(generations.get(str(run_key).partition(" ")[0], run_key), clear_number, max_tries),
            work=work,
            occurrence=occurrence,
            place=place,
            released_at=None if released is None else now - released,
        )


def _generations(folder: Path) -> dict[str, int]:
    """Which of several runs of the same id has which keys: more than one where tries began at the same time."""
    return {
        kept.name.removeprefix(f"{RUN_KEY}."): int(run.name.split(".")[1])
        for run in folder.iterdir()
        if run.is_dir()
        for kept in run.glob("*/*")
        if kept.name != RUN_KEY
    }


def _value(result: str | None) -> Any:
    return None if result is None else json.loads(result).get("ok")


def _instance(light: Light) -> Instance:
    return (LIGHT_DAG_ID, light.run_id, light.mode, -1)


def _light_outcomes(light: LightLoad) -> Iterator[Outcome]:
    for each in light.lights:
        for number, (life, began) in enumerate(each.lives.items(), 1):
            value, tried = each.values.get(life, (None, None))
            is_last = number == len(each.lives)
            # A life that nothing was sent in, as one began when another task of the run was cleared.
            if tried is None and not (is_last and each.state != "success"):
                continue
            yield Outcome(
                _instance(each),
                number,
                tried is not None,
                value,
                asked=() if tried is None else tried.items,
                max_failures=0 if tried is None else tried.max_failures,
                is_batch=each.is_batch,
                key=life,
                began=began,
                was_marked=each.was_marked,
                state=f"{each.state} in try {each.try_number}, {each.role}",
                keeps=_keeps(each, life),
            )


def _light_tries(light: LightLoad) -> Iterator[Asked]:
    for each in light.lights:
        numbers = {life: number for number, life in enumerate(each.lives, 1)}
        for tried in each.tries:
            works = [_work(each.mode, item) for item in tried.items]
            yield Asked(_instance(each), tried.at, numbers[tried.life], tried.life, works, tried.max_failures)


def _light_wishes(light: LightLoad) -> Iterator[Wish]:
    for each in light.lights:
        numbers = {life: number for number, life in enumerate(each.lives, 1)}
        for wish in each.wishes:
            yield Wish(_instance(each), wish.at, numbers[wish.life])
        if each.cancel_began is not None:
            yield Wish(_instance(each), each.cancel_began)


def _work(mode: str, item: Item) -> str:
    name = "chaos.until_cancelled" if mode == "cancelled" else "chaos.work"
    return encode_task(TaskSpec(task_name=name, kwargs=item)).work.hex()


def _airflow_wishes(airflow: AirflowLoad) -> Iterator[Wish]:
    """A clear within a run is one of all its task instances, as far as what Airflow records goes."""
    for wish in airflow.wishes:
        for task_id in AIRFLOW_WORK:
            yield Wish((DAG_ID, wish.run_id, task_id, -1), wish.at)


def _airflow_outcomes(stack: Stack, airflow: AirflowLoad) -> Iterator[Outcome]:
    values = {
        (run_id, task_id): value
        for run_id, task_id, value in stack.query_airflow(
            "SELECT run_id, task_id, value FROM xcom WHERE dag_id = %s AND key = 'return_value'", DAG_ID
        )
    }
    for run_id, task_id, map_index, state, try_number in stack.query_airflow(
        "SELECT run_id, task_id, map_index, state, try_number FROM task_instance WHERE dag_id = %s", DAG_ID
    ):
        was_marked = (run_id, task_id) in airflow.marked
        asked = AIRFLOW_WORK.get(task_id)
        items = None
        if asked is not None:
            items = [new_item(f"{run_id}-{key}", seconds=seconds, fails=fails) for key, seconds, fails in asked]
        yield Outcome(
            (DAG_ID, run_id, task_id, map_index),
            1,
            state == "success" and not was_marked,
            values.get((run_id, task_id)),
            asked=items,
            is_batch=task_id in BATCHES,
            was_marked=was_marked,
            state=f"Airflow says {state}, try {try_number}",
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
