-- Replaces an earlier request that no submission has taken.
WITH replaced AS (
    UPDATE airflow_horsies.repairs
    SET taken_at = now(), works = NULL, occurrences = NULL
    WHERE
        namespace = %(namespace)s
        AND dag_id = %(dag_id)s
        AND run_id = %(run_id)s
        AND task_id = %(task_id)s
        AND map_index = %(map_index)s
        AND taken_at IS NULL
)
INSERT INTO airflow_horsies.repairs (
    namespace, dag_id, run_id, task_id, map_index, base_url, life, clear_number, run_started_at, works, occurrences,
    requested_by
)
VALUES (
    %(namespace)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, %(base_url)s, %(life)s, %(clear_number)s,
    %(run_started_at)s::timestamptz, %(works)s::bytea, %(occurrences)s::integer[], %(requested_by)s
)
RETURNING id
