-- The outcomes of items, by task and number.
SELECT
    item.horsies_task_id::text AS horsies_task_id, item.number, item.outcome, item.attempt, item.tries, item.started_at,
    item.finished_at, item.error_code, item.error_message, item.hostname,
    CASE WHEN %(with_values)s THEN item.value END AS value
FROM unnest(%(ids)s::uuid[], %(numbers)s::integer[]) AS wanted (id, number)
INNER JOIN airflow_horsies.items AS item
    ON item.horsies_task_id = wanted.id AND item.number = wanted.number
