-- As read_latest_ids, of those that a try has submitted, with their life.
SELECT max(life) AS life, coalesce(array_agg(horsies_task_id ORDER BY position), '{}')::text AS ids
FROM airflow_horsies.known_submissions
WHERE
    namespace = %(namespace)s
    AND (%(base_url)s::text = '' OR base_url IN (%(base_url)s::text, ''))
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
    AND try_number = %(try_number)s
    AND is_latest
