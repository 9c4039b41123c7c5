"""What we would write equals, column by column and digest by digest, what upstream's own send() wrote."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.models import RetryPolicy, TaskSpec
from airflow_horsies.wire.encoding import encode_task
from tests.integration.releases import keeps_history, release_python

GOOD_UNTIL = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
FIXED = RetryPolicy.fixed([10, 60], auto_retry_for=["RATE_LIMITED"])
EXPONENTIAL = RetryPolicy.exponential(
    5, max_retries=4, auto_retry_for=["RATE_LIMITED", "WORKER_CRASHED"], jitter=False, max_delay_seconds=60
)
VARIANTS = {
    "plain": TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}),
    "no arguments": TaskSpec(task_name="nothing"),
    "fixed": TaskSpec(task_name="with_fixed_retries", kwargs={"a": 1}, retry_policy=FIXED),
    "exponential": TaskSpec(
        task_name="with_exponential_retries",
        kwargs={"a": 1},
        retry_policy=EXPONENTIAL,
        timeout=timedelta(seconds=90),
    ),
    "good_until": TaskSpec(task_name="with_fixed_retries", kwargs={"a": 1}, retry_policy=FIXED, good_until=GOOD_UNTIL),
    "delayed": TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}, delay=timedelta(seconds=30)),
    "unicode": TaskSpec(task_name="echo", kwargs={"value": "naïve 馬 🐎 a\x00b"}),
    "mixed": TaskSpec(
        task_name="mixed",
        kwargs={"n": 1, "text": "x", "items": [1, 2], "flag": True, "nested": {"b": 1.5, "a": 2.0}},
    ),
}
SAME_IN_BOTH = ("task_name", "queue_name", "priority", "kwargs", "good_until", "max_retries", "task_options")
ONLY_MOVED = ("retention_class_key", "retain_rerun_input", "command_fingerprint", "input_digest")


def test_rows_and_digests_equal_those_of_upstreams_own_send(
    postgres: EmbeddedPostgres, database: str, release: str
) -> None:
    sent = subprocess.run(
        [release_python(release), Path(__file__).with_name("upstream_send.py"), GOOD_UNTIL.isoformat()],
        env={**os.environ, "HORSIES_DATABASE_URL": postgres.dsn(database, scheme="postgresql+psycopg")},
        capture_output=True,
        text=True,
    )
    assert sent.returncode == 0, sent.stderr
    ids = json.loads(sent.stdout.splitlines()[-1])
    assert ids.keys() == VARIANTS.keys()
    with psycopg.connect(**postgres.conninfo(database), row_factory=dict_row) as connection:
        rows = {row["id"]: row for row in connection.execute("SELECT t.*, t.id::text AS id FROM horsies_tasks AS t")}
    for name, spec in VARIANTS.items():
        row = rows[ids[name]]
        ours = encode_task(spec, sent_at=row["sent_at"])
        for column in SAME_IN_BOTH + (ONLY_MOVED if keeps_history(release) else ()):
            assert getattr(ours, column) == row[column], (name, column)
        assert ours.enqueue_sha == row["enqueue_sha"], name
        if keeps_history(release):
            assert ours.rerun_disposition == row["prepared_rerun_input_disposition"], name
