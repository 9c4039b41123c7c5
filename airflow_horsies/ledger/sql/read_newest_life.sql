-- The newest round of each item of the newest life, including items that are no longer requested; a chunk is one row,
-- with its items in arrays.
SELECT DISTINCT ON (sent.position)
    sent.position, sent.place, sent.life, sent.round, sent.try_number, sent.horsies_task_id::text AS horsies_task_id,
    sent.base_url, sent.run_key, sent.run_started_at, sent.clear_number, sent.max_tries, sent.work, sent.occurrence,
    sent.released_at, sent.seen_try, sent.taken_up, sent.queue_name, sent.good_until, sent.kind,
    chunk.works, chunk.occurrences, chunk.rounds, chunk.places, chunk.dropped,
    EXISTS (
        SELECT FROM airflow_horsies.cancel_requests AS request
        WHERE request.horsies_task_id = sent.horsies_task_id
    ) AS is_to_be_cancelled
FROM airflow_horsies.submissions AS sent
LEFT JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
WHERE
    sent.namespace = %(namespace)s
    AND sent.dag_id = %(dag_id)s
    AND sent.run_id = %(run_id)s
    AND sent.task_id = %(task_id)s
    AND sent.map_index = %(map_index)s
    AND sent.life = (
        SELECT max(any_life.life)
        FROM airflow_horsies.submissions AS any_life
        WHERE
            any_life.namespace = %(namespace)s
            AND any_life.dag_id = %(dag_id)s
            AND any_life.run_id = %(run_id)s
            AND any_life.task_id = %(task_id)s
            AND any_life.map_index = %(map_index)s
    )
ORDER BY sent.position, sent.round DESC
