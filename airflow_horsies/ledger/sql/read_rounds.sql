-- The submissions of a task instance of this deployment at a position, newest first.
-- Tables of an older version have no kind: inside, the name then means the one outside.
SELECT
    known.namespace, known.dag_id, known.run_id, known.task_id, known.map_index, known.position, known.life, known.round,
    known.try_number, known.horsies_task_id, known.base_url, known.task_name, known.queue_name, known.good_until,
    known.submitted_at, known.is_latest, known.kind
FROM (VALUES ('TASK')) AS older (kind)
CROSS JOIN LATERAL (
    SELECT
        namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number,
        horsies_task_id::text AS horsies_task_id, base_url, task_name, queue_name, good_until, submitted_at, is_latest, kind
    FROM airflow_horsies.known_submissions
    WHERE
        namespace = %(namespace)s
        AND (%(base_url)s::text = '' OR base_url IN (%(base_url)s::text, ''))
        AND dag_id = %(dag_id)s
        AND run_id = %(run_id)s
        AND task_id = %(task_id)s
        AND map_index = %(map_index)s
        AND position = %(position)s
        AND (%(life)s::integer IS NULL OR life = %(life)s::integer)
        AND (%(round)s::integer IS NULL OR round = %(round)s::integer)
) AS known
ORDER BY known.life DESC, known.is_latest DESC, known.round DESC
LIMIT %(limit)s
