-- As read_latest_ids, with the number of items, of which a chunk has several.
-- The newest life is asked for first: there may be many lives of many tasks.
WITH newest AS (
    SELECT max(life) AS life
    FROM airflow_horsies.submissions
    WHERE
        namespace = %(namespace)s
        AND dag_id = %(dag_id)s
        AND run_id = %(run_id)s
        AND task_id = %(task_id)s
        AND map_index = %(map_index)s
)
SELECT
    coalesce(sum(coalesce(cardinality(array_remove(chunk.places, -1)), 1)), 0)::bigint AS count,
    coalesce(array_agg(known.horsies_task_id ORDER BY known.position), '{}')::text AS ids,
    count(chunk.horsies_task_id) AS chunks
FROM airflow_horsies.known_submissions AS known
LEFT JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
WHERE
    known.namespace = %(namespace)s
    AND (%(base_url)s::text = '' OR known.base_url IN (%(base_url)s::text, ''))
    AND known.dag_id = %(dag_id)s
    AND known.run_id = %(run_id)s
    AND known.task_id = %(task_id)s
    AND known.map_index = %(map_index)s
    AND known.life = (SELECT newest.life FROM newest)
    AND known.is_latest
