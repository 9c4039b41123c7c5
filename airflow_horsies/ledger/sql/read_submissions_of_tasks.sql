-- The task instances behind horsies tasks, and whether what they submitted was followed by a newer submission.
SELECT
    sent.namespace, sent.dag_id, sent.run_id, sent.task_id, sent.map_index, sent.position, sent.life, sent.round,
    sent.try_number, sent.horsies_task_id::text AS horsies_task_id, sent.task_name, sent.queue_name, sent.good_until,
    sent.submitted_at,
    NOT EXISTS (
        SELECT FROM airflow_horsies.submissions AS newer
        WHERE
            newer.namespace = sent.namespace
            AND newer.dag_id = sent.dag_id
            AND newer.run_id = sent.run_id
            AND newer.task_id = sent.task_id
            AND newer.map_index = sent.map_index
            AND newer.position = sent.position
            AND (newer.life, newer.round) > (sent.life, sent.round)
    ) AS is_latest
FROM airflow_horsies.submissions AS sent
WHERE sent.horsies_task_id = ANY(%(ids)s::uuid[])
ORDER BY sent.submitted_at DESC
