-- A new life keeps tasks of an earlier one: they get submissions of the new life.
INSERT INTO airflow_horsies.submissions (
    namespace, dag_id, run_id, task_id, map_index, position, place, life, round, try_number, run_key, run_started_at,
    clear_number, max_tries, horsies_task_id, base_url, task_name, queue_name, good_until, work, occurrence,
    taken_up, key_digest
)
SELECT
    sent.namespace, sent.dag_id, sent.run_id, sent.task_id, sent.map_index, kept.new_position,
    nullif(kept.place, kept.new_position), %(life)s, sent.round, %(try_number)s, %(run_key)s,
    %(run_started_at)s::timestamptz, %(clear_number)s::integer, %(max_tries)s::integer, sent.horsies_task_id,
    %(base_url)s, sent.task_name, sent.queue_name, sent.good_until, sent.work, sent.occurrence, TRUE, sent.key_digest
FROM json_to_recordset(%(kept)s::json) AS kept (position integer, round integer, new_position integer, place integer)
INNER JOIN airflow_horsies.submissions AS sent USING (position, round)
WHERE
    sent.namespace = %(namespace)s
    AND sent.dag_id = %(dag_id)s
    AND sent.run_id = %(run_id)s
    AND sent.task_id = %(task_id)s
    AND sent.map_index = %(map_index)s
    AND sent.life = %(last_life)s
