-- The next targets of messages, and tasks with waits or checkpoints, that had no activity for a while.
WITH page AS (SELECT coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000') AS after),

known AS (
    (
        SELECT DISTINCT message.target AS id
        FROM airflow_horsies.messages AS message
        WHERE message.target > (SELECT page.after FROM page)
        ORDER BY message.target
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT DISTINCT parking.horsies_task_id
        FROM airflow_horsies.parkings AS parking
        WHERE parking.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY parking.horsies_task_id
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT DISTINCT checkpoint.horsies_task_id
        FROM airflow_horsies.checkpoints AS checkpoint
        WHERE checkpoint.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY checkpoint.horsies_task_id
        LIMIT %(limit)s
    )
    ORDER BY id
    LIMIT %(limit)s
)

SELECT
    known.id::text AS id,
    coalesce(greatest(
        (SELECT max(coalesce(consumed_at, sent_at)) FROM airflow_horsies.messages WHERE target = known.id),
        (SELECT max(parked_at) FROM airflow_horsies.parkings WHERE horsies_task_id = known.id),
        (SELECT max(saved_at) FROM airflow_horsies.checkpoints WHERE horsies_task_id = known.id)
    ) < now() - make_interval(secs => %(older_than_seconds)s::double precision), TRUE) AS is_old
FROM known
ORDER BY known.id
