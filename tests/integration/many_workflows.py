"""Fills a database of a release with workflows, straight in SQL, as workers would have left them.

Each is a graph of four nodes. The third node is a workflow of two nodes in every second one.
"""

from __future__ import annotations

import psycopg


def fill_workflows(connection: psycopg.Connection, *, workflows: int, keeps_history: bool) -> None:
    """So many, one every minute up to now, in all states."""
    kind = "uuid" if keeps_history else "text"
    connection.execute("SET session_replication_role = replica")
    connection.execute(PLAN, {"workflows": workflows})
    for statement in (ROOTS, INNER, NODES, INNER_NODES):
        connection.execute(statement.replace("::id", f"::{kind}").encode())
    connection.commit()


PLAN = """
CREATE TEMPORARY TABLE planned_workflows AS
SELECT
    number, md5('workflow ' || number) AS id, mod(number, 2) = 0 AS has_inner,
    (ARRAY['COMPLETED', 'FAILED', 'CANCELLED', 'RUNNING', 'PAUSED'])[1 + mod(number, 5)] AS status,
    date_trunc('minute', now()) - number * interval '1 minute' AS at
FROM generate_series(0, %(workflows)s - 1) AS number
"""

# A completed one keeps the error of a node that was allowed to fail; an error may be plain text.
ROOTS = r"""
INSERT INTO horsies_workflows (
    id, name, status, on_error, output_task_index, result, error, definition_key, depth, root_workflow_id, sent_at,
    created_at, started_at, completed_at, updated_at
)
SELECT
    id::uuid::id, 'flow ' || mod(number, 7), status, 'fail', CASE WHEN has_inner THEN 3 END,
    CASE status WHEN 'COMPLETED' THEN '{"__h_task_result__":true,"ok":"a\u0000b","err":null}' END,
    CASE mod(number, 3)
        WHEN 0 THEN '{"error_code":"BROKEN_' || mod(number, 4) || '","data":"\u0000 \\u0000 \ud83d","message":"no"}'
        WHEN 1 THEN '{"exception":null,"error_code":{"__builtin_task_code__":"WORKER_CRASHED"},"message":"naïve \" 馬"}'
        ELSE 'paused for longer than a day'
    END,
    'airflow_horsies.graph.v1', 0, id::uuid::id, at, at, at,
    CASE WHEN status IN ('COMPLETED', 'FAILED') THEN at + interval '30 seconds' END, at + interval '40 seconds'
FROM planned_workflows
"""

INNER = """
INSERT INTO horsies_workflows (
    id, name, status, on_error, definition_key, parent_workflow_id, parent_task_index, depth, root_workflow_id,
    sent_at, created_at, started_at, completed_at, updated_at
)
SELECT
    md5('inner ' || number)::uuid::id, 'inner', status, 'pause', 'flows.inner', id::uuid::id, 2, 1, id::uuid::id,
    at, at, at, CASE WHEN status IN ('COMPLETED', 'FAILED') THEN at + interval '20 seconds' END, at
FROM planned_workflows
WHERE has_inner
"""

NODES = r"""
INSERT INTO horsies_workflow_tasks (
    id, workflow_id, task_index, node_id, task_name, task_args, task_kwargs, queue_name, priority, dependencies,
    allow_failed_deps, join_type, min_success, status, task_id, is_subworkflow, sub_workflow_id, sub_definition_key,
    result, created_at, started_at, completed_at
)
SELECT
    md5('node ' || number || ' ' || index)::uuid::id, id::uuid::id, index,
    -- Releases before 0.1.3 give nodes no name.
    CASE WHEN number > 0 OR index <> 1 THEN 'node, "' || index || '"' END,
    CASE WHEN is_inner THEN 'inner' ELSE 'kind_' || index END, '[]', '{"part": 1}', 'queue_' || mod(number, 3), 100,
    (ARRAY['{}', '{0}', '{0,1}', '{2,1,0}'])[1 + index]::integer[], index = 3,
    CASE index WHEN 3 THEN 'quorum' ELSE 'all' END, CASE index WHEN 3 THEN 2 END, state.of_node,
    CASE WHEN NOT is_inner AND state.of_node <> 'SKIPPED' THEN md5('of ' || number || index)::uuid::id END, is_inner,
    CASE WHEN is_inner THEN md5('inner ' || number)::uuid::id END, CASE WHEN is_inner THEN 'flows.inner' END,
    CASE state.of_node
        WHEN 'COMPLETED' THEN '{"__h_task_result__":true,"ok":"\u0000","err":null}'
        WHEN 'FAILED' THEN CASE
            WHEN mod(number, 3) = 0 THEN 'null'
            WHEN mod(number, 3) = 1
                THEN '{"__h_task_result__":true,"ok":null,"err":{"error_code":"BAD_PART","message":"\u0000\\ \" 馬"}}'
            ELSE '{"__h_task_result__":true,"ok":null,'
                '"err":{"error_code":{"__builtin_task_code__":"TASK_TIMED_OUT"},"message":"late"}}'
        END
    END,
    at, CASE WHEN state.of_node <> 'SKIPPED' THEN at + index * interval '5 seconds' END,
    CASE WHEN state.of_node IN ('COMPLETED', 'FAILED') THEN at + (index + 1) * interval '5 seconds' END
FROM planned_workflows
CROSS JOIN generate_series(0, 3) AS index
CROSS JOIN LATERAL (SELECT has_inner AND index = 2 AS is_inner) AS told
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN status = 'COMPLETED' OR index = 0 THEN 'COMPLETED'
        WHEN status IN ('RUNNING', 'PAUSED') THEN (ARRAY['', 'ENQUEUED', 'RUNNING', 'PENDING'])[1 + index]
        WHEN index = 3 THEN 'SKIPPED'
        ELSE 'FAILED'
    END AS of_node
) AS state
"""

INNER_NODES = """
INSERT INTO horsies_workflow_tasks (
    id, workflow_id, task_index, node_id, task_name, queue_name, priority, dependencies, allow_failed_deps, join_type,
    status, is_subworkflow, created_at
)
SELECT
    md5('inner node ' || number || ' ' || index)::uuid::id, md5('inner ' || number)::uuid::id, index, 'i' || index,
    'kind_of_inner', 'default', 100, '{}', FALSE, 'all', 'PENDING', FALSE, at
FROM planned_workflows
CROSS JOIN generate_series(0, 1) AS index
WHERE has_inner
"""
