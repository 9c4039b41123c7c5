-- The clear of a request failed.
UPDATE airflow_horsies.repairs
SET taken_at = now(), works = NULL, occurrences = NULL
WHERE
    namespace = %(namespace)s
    AND (%(base_url)s::text = '' OR base_url IN (%(base_url)s::text, ''))
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
    AND id = %(id)s
    AND taken_at IS NULL
RETURNING id
