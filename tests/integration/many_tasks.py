"""Fills a database of a release with many tasks, straight in SQL, as workers and Airflow would have left them.

Task 0 is the newest. The newest are live, then comes a batch, and everything else belongs to DAG runs of 20 tasks,
whose last three are the rounds of one task instance. A task has three attempts on average.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import sql

from airflow_horsies.models import TaskInstanceKey

LIVE_TASKS = 300
BATCH_ITEMS = 1_000
FIRST_OF_BATCH = 1_000
END_OF_BATCH = FIRST_OF_BATCH + BATCH_ITEMS
TASKS_OF_RUN = 20
ROUNDS_OF_LAST = 3
DAGS = 50
WORKERS = 20
BATCH = TaskInstanceKey(dag_id="dag_of_batch", run_id="run_of_batch", task_id="load")


def run_ids(run: int) -> tuple[str, str]:
    """The ids of the DAG and of the DAG run, as the plan has them."""
    return f"dag_{run % DAGS}", f"scheduled__{run}"


def instance_of_many_rounds(run: int) -> TaskInstanceKey:
    dag_id, run_id = run_ids(run)
    return TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=f"task_{TASKS_OF_RUN - ROUNDS_OF_LAST}")


def fill(
    connection: psycopg.Connection, *, tasks: int, days: int, keeps_history: bool, batch_items: int = BATCH_ITEMS
) -> None:
    """So many tasks, sent over so many days up to now; the ledger's tables must be there."""
    # Millions of notifications and checks of foreign keys would tell nothing here.
    connection.execute("SET session_replication_role = replica")
    connection.execute("SET work_mem = '64MB'")
    connection.execute(
        PLAN,
        {
            "tasks": tasks,
            "seconds": 86_400 * days,
            "live": LIVE_TASKS,
            "first_of_batch": FIRST_OF_BATCH,
            "end_of_batch": FIRST_OF_BATCH + batch_items,
            "tasks_of_run": TASKS_OF_RUN,
            "rounds": ROUNDS_OF_LAST,
            "dags": DAGS,
            "workers": WORKERS,
            "batch_dag": BATCH.dag_id,
            "batch_run": BATCH.run_id,
            "batch_task": BATCH.task_id,
        },
    )
    connection.execute(PLAN_ATTEMPTS)
    if keeps_history:
        add_leaves(connection, days)
    for statement in (*(MOVED if keeps_history else IN_PLACE), *LEDGER):
        connection.execute(statement)
    connection.execute(WORKER_STATES, {"workers": WORKERS, "snapshots": tasks // 4 // WORKERS})
    connection.commit()
    # As autovacuum would have done by then.
    connection.autocommit = True
    connection.execute("VACUUM (ANALYZE)")


def add_leaves(connection: psycopg.Connection, days: int) -> None:
    """The history's leaves of the days before, each with the columns, checks and indexes of one a worker made."""
    made = connection.execute(
        "SELECT child.relname, parent.relname FROM pg_inherits"
        " JOIN pg_class AS child ON child.oid = inhrelid JOIN pg_class AS parent ON parent.oid = inhparent"
        " WHERE parent.relname LIKE 'horsies_task_history_standard%' ORDER BY child.relname"
    ).fetchall()
    names = {name for name, _ in made}
    model, parent = made[0]
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for lower in (midnight - timedelta(days=age) for age in range(days + 1)):
        name = re.sub(r"\d{4}_\d\d_\d\d$", f"{lower:%Y_%m_%d}", model)
        if name in names:
            continue
        connection.execute(
            sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(sql.Identifier(name), sql.Identifier(model))
        )
        connection.execute(
            sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                sql.Identifier(parent), sql.Identifier(name), lower, lower + timedelta(days=1)
            )
        )


# The items of a batch are sent in one statement, and so at one time. Ids say nothing of the time, as ours do not.
PLAN = """
CREATE TEMPORARY TABLE planned AS
SELECT
    number,
    md5('task ' || number)::uuid AS id,
    CASE
        WHEN number < %(live)s THEN (ARRAY['PENDING', 'CLAIMED', 'RUNNING'])[1 + mod(number, 3)]
        WHEN mod(number, 200) = 7 OR is_batch AND mod(number, 100) = 1 THEN 'FAILED'
        WHEN mod(run, 20) = 3 AND of_run > %(tasks_of_run)s - %(rounds)s THEN 'FAILED'
        ELSE 'COMPLETED'
    END AS status,
    number < %(live)s AS is_live,
    1 + mod(number, 5) AS attempts,
    CASE WHEN is_batch THEN %(batch_dag)s ELSE 'dag_' || mod(run, %(dags)s) END AS dag_id,
    CASE WHEN is_batch THEN %(batch_run)s ELSE 'scheduled__' || run END AS run_id,
    CASE WHEN is_batch THEN %(batch_task)s ELSE 'task_' || least(of_run, %(tasks_of_run)s - %(rounds)s) END AS task_id,
    CASE WHEN is_batch THEN number - %(first_of_batch)s ELSE 0 END AS position,
    CASE WHEN is_batch THEN 1 ELSE least(%(tasks_of_run)s - of_run, %(rounds)s) END AS round,
    'queue_' || mod(number, 4) AS queue_name,
    'task_of_kind_' || mod(number, 30) AS task_name,
    'worker-' || mod(number, %(workers)s) AS worker_id,
    'node-' || mod(number, %(workers)s) AS hostname,
    now() - make_interval(
        secs => %(seconds)s::float * (1 + CASE WHEN is_batch THEN %(first_of_batch)s ELSE number END) / %(tasks)s
    ) AS enqueued_at
FROM (
    SELECT
        number,
        number / %(tasks_of_run)s AS run,
        mod(number, %(tasks_of_run)s) AS of_run,
        number >= %(first_of_batch)s AND number < %(end_of_batch)s AS is_batch
    FROM generate_series(%(tasks)s - 1, 0, -1) AS number
) AS numbered
ORDER BY number DESC
"""

# The last attempt of a live task has not ended.
PLAN_ATTEMPTS = """
CREATE TEMPORARY TABLE planned_attempts AS
SELECT
    planned.number, planned.id, planned.is_live, planned.worker_id, planned.hostname, attempt,
    attempt < planned.attempts AS will_retry,
    CASE WHEN attempt < planned.attempts THEN 'FAILED' ELSE planned.status END AS outcome,
    CASE WHEN attempt < planned.attempts OR planned.status = 'FAILED' THEN 'TASK_EXCEPTION' END AS error_code,
    CASE
        WHEN attempt < planned.attempts OR planned.status = 'FAILED'
            THEN 'ValueError: the file of part ' || planned.number || ' is not there yet'
    END AS error_message,
    planned.enqueued_at + attempt * interval '2 seconds' AS started_at,
    planned.enqueued_at + attempt * interval '2 seconds' + interval '1.5 seconds' AS finished_at
FROM planned
CROSS JOIN LATERAL generate_series(1, planned.attempts) AS attempt
WHERE NOT planned.is_live OR attempt < planned.attempts
"""

LIVE_TASKS_OF_MOVED = """
INSERT INTO horsies_tasks (
    id, task_name, queue_name, kwargs, status, sent_at, enqueued_at, claimed_at, started_at, claimed,
    claimed_by_worker_id, retry_count, max_retries, enqueue_sha, worker_hostname, worker_pid,
    command_fingerprint_version, command_fingerprint, retention_class_key, retain_rerun_input,
    prepared_rerun_input_disposition
)
SELECT
    id, task_name, queue_name, '{"part": 1}', status, enqueued_at, enqueued_at,
    CASE WHEN status <> 'PENDING' THEN enqueued_at END, CASE WHEN status = 'RUNNING' THEN enqueued_at END,
    status <> 'PENDING', CASE WHEN status <> 'PENDING' THEN worker_id END, attempts - 1, 5, md5(id::text), hostname, 7,
    1, sha256(uuid_send(id)), 'standard_30d', FALSE, 'DECLINED_BY_POLICY'
FROM planned
WHERE is_live
ORDER BY number DESC
"""

HISTORY = """
INSERT INTO horsies_task_history (
    task_id, task_name, queue_name, priority, command_fingerprint_version, command_fingerprint, status,
    terminalization_kind, terminal_at, retention_anchor_at, retention_class_key, sent_at, enqueued_at, claimed_at,
    started_at, created_at, retry_count, max_retries, last_claimed_worker_id, last_worker_hostname, last_worker_pid,
    result_envelope_version, result_codec, result_content_type, result_payload, result_digest, error_code,
    final_failed_reason, is_workflow_task, history_schema_version, attempt_archive_version, attempt_snapshot_codec,
    attempt_snapshot_content_type, attempt_snapshot, attempt_snapshot_digest, rerun_input_disposition
)
SELECT
    id, task_name, queue_name, 100, 1, sha256(uuid_send(id)), status,
    CASE status WHEN 'FAILED' THEN 'FAIL_RUNNING' ELSE 'COMPLETE_FUSED' END, told.ended_at, told.ended_at,
    'standard_30d', enqueued_at, enqueued_at, enqueued_at, told.started_at, enqueued_at, attempts - 1, 5, worker_id,
    hostname, 7, 1, 'json-utf8', 'application/json', convert_to(told.result, 'UTF8'), sha256(uuid_send(id)),
    told.error_code, told.error_message, FALSE, 1, 1, 'json-utf8', 'application/json',
    convert_to(told.snapshot, 'UTF8'), sha256(uuid_send(id)), 'NEVER_ELIGIBLE'
FROM planned
CROSS JOIN LATERAL (
    SELECT
        enqueued_at + attempts * interval '2 seconds' AS started_at,
        enqueued_at + attempts * interval '2 seconds' + interval '1.5 seconds' AS ended_at,
        CASE status WHEN 'FAILED' THEN 'TASK_EXCEPTION' END AS error_code,
        CASE status WHEN 'FAILED' THEN 'the file of part ' || number || ' is not there yet' END AS error_message,
        CASE status
            WHEN 'FAILED' THEN '{"__h_task_result__": true, "err": {"error_code": "TASK_EXCEPTION", "message": "no"}}'
            ELSE '{"__h_task_result__": true, "ok": {"rows": ' || number || ', "path": "s3://bucket/part"}}'
        END AS result,
        (
            SELECT json_agg(
                json_build_array(
                    attempt, CASE WHEN attempt < attempts THEN 'FAILED' ELSE status END, attempt < attempts,
                    floor(extract(epoch FROM enqueued_at) * 1000000)::bigint + attempt * 2000000,
                    floor(extract(epoch FROM enqueued_at) * 1000000)::bigint + attempt * 2000000 + 1500000,
                    CASE WHEN attempt < attempts OR status = 'FAILED' THEN 'TASK_EXCEPTION' END,
                    CASE
                        WHEN attempt < attempts OR status = 'FAILED'
                            THEN 'ValueError: the file of part ' || number || ' is not there yet'
                    END,
                    NULL, worker_id, hostname, 7, 'SpawnProcess-1'
                )
                ORDER BY attempt
            )::text
            FROM generate_series(1, attempts) AS attempt
        ) AS snapshot
) AS told
WHERE NOT is_live
ORDER BY number DESC
"""

LIVE_ATTEMPTS = """
INSERT INTO horsies_task_attempts (
    task_id, attempt, outcome, will_retry, started_at, finished_at, error_code, error_message, worker_id,
    worker_hostname, worker_pid, worker_process_name
)
SELECT
    id, attempt, outcome, will_retry, started_at, finished_at, error_code, error_message, worker_id, hostname, 7,
    'SpawnProcess-1'
FROM planned_attempts
WHERE is_live
"""

TASKS_IN_PLACE = """
INSERT INTO horsies_tasks (
    id, task_name, queue_name, kwargs, status, sent_at, enqueued_at, claimed_at, started_at, completed_at, failed_at,
    terminal_at, result, failed_reason, error_code, claimed, claimed_by_worker_id, retry_count, max_retries,
    enqueue_sha, worker_hostname, worker_pid, created_at, updated_at
)
SELECT
    id::text, task_name, queue_name, '{"part": 1, "path": "s3://bucket/part"}', status, enqueued_at, enqueued_at,
    CASE WHEN status <> 'PENDING' THEN enqueued_at END,
    CASE WHEN status NOT IN ('PENDING', 'CLAIMED') THEN enqueued_at + attempts * interval '2 seconds' END,
    CASE status WHEN 'COMPLETED' THEN ended_at END, CASE status WHEN 'FAILED' THEN ended_at END,
    CASE WHEN NOT is_live THEN ended_at END,
    CASE status
        WHEN 'FAILED' THEN '{"__h_task_result__": true, "err": {"error_code": "TASK_EXCEPTION", "message": "no"}}'
        WHEN 'COMPLETED' THEN '{"__h_task_result__": true, "ok": {"rows": ' || number || ', "path": "s3://b/part"}}'
    END,
    CASE status WHEN 'FAILED' THEN 'the file of part ' || number || ' is not there yet' END,
    CASE status WHEN 'FAILED' THEN 'TASK_EXCEPTION' END,
    status <> 'PENDING', CASE WHEN status <> 'PENDING' THEN worker_id END, attempts - 1, 5, md5(id::text), hostname, 7,
    enqueued_at, ended_at
FROM (
    SELECT *, enqueued_at + attempts * interval '2 seconds' + interval '1.5 seconds' AS ended_at FROM planned
) AS ended
ORDER BY number DESC
"""

ATTEMPTS_IN_PLACE = """
INSERT INTO horsies_task_attempts (
    task_id, attempt, outcome, will_retry, started_at, finished_at, error_code, error_message, worker_id,
    worker_hostname, worker_pid, worker_process_name
)
SELECT
    id::text, attempt, outcome, will_retry, started_at, finished_at, error_code, error_message, worker_id, hostname, 7,
    'SpawnProcess-1'
FROM planned_attempts
"""

SUBMISSIONS = """
INSERT INTO airflow_horsies.submissions (
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number, horsies_task_id, base_url,
    task_name, queue_name, submitted_at
)
SELECT
    'default', dag_id, run_id, task_id, -1, position, 1, round, round, id, 'http://airflow.test:8080', task_name,
    queue_name, enqueued_at
FROM planned
"""

LEDGER_ATTEMPTS = """
INSERT INTO airflow_horsies.attempts (
    horsies_task_id, attempt, worker_id, hostname, pid, started_at, finished_at, outcome, error_code, error_message,
    metrics
)
SELECT
    id, attempt, worker_id, hostname, 7, started_at, finished_at, outcome, error_code, error_message,
    '{"jobs": 3, "input_rows": 1000, "output_rows": 10}'
FROM planned_attempts
"""

LOGS = """
INSERT INTO airflow_horsies.logs (horsies_task_id, attempt, line_number, logged_at, level, line)
SELECT id, attempt, 1, started_at, 'INFO', 'Reading part ' || number || ' from s3://bucket/part'
FROM planned_attempts
"""

PROGRESS = """
INSERT INTO airflow_horsies.progress (horsies_task_id, attempt, done, total)
SELECT id, attempts, 3, 10
FROM planned
WHERE status = 'RUNNING'
"""

# Every half a minute, up to now.
WORKER_STATES = """
INSERT INTO horsies_worker_states (
    worker_id, snapshot_at, hostname, pid, processes, max_claim_batch, max_claim_per_worker, queues, tasks_running,
    tasks_claimed, memory_usage_mb, cpu_percent, worker_started_at
)
SELECT
    'worker-' || worker, now() - age * interval '30 seconds', 'node-' || worker, 7, 4, 2, 4,
    ARRAY['queue_0', 'queue_1', 'queue_2', 'queue_3'], 3, 1, 300, 20, now() - interval '30 days'
FROM generate_series(%(snapshots)s - 1, 0, -1) AS age
CROSS JOIN generate_series(0, %(workers)s - 1) AS worker
"""

MOVED = (LIVE_TASKS_OF_MOVED, HISTORY, LIVE_ATTEMPTS)
IN_PLACE = (TASKS_IN_PLACE, ATTEMPTS_IN_PLACE)
LEDGER = (SUBMISSIONS, LEDGER_ATTEMPTS, LOGS, PROGRESS)
