-- The submissions of a task instance of this deployment at a position, newest first.
SELECT
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number,
    horsies_task_id::text AS horsies_task_id, base_url, task_name, queue_name, good_until, submitted_at, is_latest
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
ORDER BY life DESC, is_latest DESC, round DESC
LIMIT %(limit)s
