-- The next ids of all our tables, in order, and whether they had no activity for a while. A chunk without any has not
-- been started.
WITH RECURSIVE page AS (SELECT coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000') AS after),

-- One index lookup per task, however many lines it has.
logged AS (
    (
        SELECT logs.horsies_task_id, 1 AS number
        FROM airflow_horsies.logs
        WHERE logs.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY logs.horsies_task_id
        LIMIT 1
    )
    UNION ALL
    SELECT following.horsies_task_id, logged.number + 1
    FROM logged
    CROSS JOIN LATERAL (
        SELECT logs.horsies_task_id
        FROM airflow_horsies.logs
        WHERE logs.horsies_task_id > logged.horsies_task_id
        ORDER BY logs.horsies_task_id
        LIMIT 1
    ) AS following
    WHERE logged.number < %(limit)s
),

-- As of the lines.
ended AS (
    (
        SELECT items.horsies_task_id, 1 AS number
        FROM airflow_horsies.items
        WHERE items.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY items.horsies_task_id
        LIMIT 1
    )
    UNION ALL
    SELECT following.horsies_task_id, ended.number + 1
    FROM ended
    CROSS JOIN LATERAL (
        SELECT items.horsies_task_id
        FROM airflow_horsies.items
        WHERE items.horsies_task_id > ended.horsies_task_id
        ORDER BY items.horsies_task_id
        LIMIT 1
    ) AS following
    WHERE ended.number < %(limit)s
),

known AS (
    SELECT logged.horsies_task_id
    FROM logged
    UNION
    SELECT ended.horsies_task_id
    FROM ended
    UNION
    (
        SELECT chunks.horsies_task_id
        FROM airflow_horsies.chunks
        WHERE chunks.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY chunks.horsies_task_id
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT submissions.horsies_task_id
        FROM airflow_horsies.submissions
        WHERE submissions.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY submissions.horsies_task_id
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT attempts.horsies_task_id
        FROM airflow_horsies.attempts
        WHERE attempts.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY attempts.horsies_task_id
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT signals.horsies_task_id
        FROM airflow_horsies.signals
        WHERE signals.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY signals.horsies_task_id
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT cancel_requests.horsies_task_id
        FROM airflow_horsies.cancel_requests
        WHERE cancel_requests.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY cancel_requests.horsies_task_id
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT progress.horsies_task_id
        FROM airflow_horsies.progress
        WHERE progress.horsies_task_id > (SELECT page.after FROM page)
        ORDER BY progress.horsies_task_id
        LIMIT %(limit)s
    )
    ORDER BY horsies_task_id
    LIMIT %(limit)s
)

SELECT
    known.horsies_task_id::text AS horsies_task_id,
    coalesce(greatest(
        (SELECT max(submitted_at) FROM airflow_horsies.submissions WHERE horsies_task_id = known.horsies_task_id),
        (
            SELECT max(coalesce(finished_at, started_at))
            FROM airflow_horsies.attempts
            WHERE horsies_task_id = known.horsies_task_id
        ),
        -- The last item, not the last that ended: one index lookup per chunk.
        (
            SELECT finished_at
            FROM airflow_horsies.items
            WHERE horsies_task_id = known.horsies_task_id
            ORDER BY number DESC
            LIMIT 1
        ),
        (SELECT max(requested_at) FROM airflow_horsies.signals WHERE horsies_task_id = known.horsies_task_id),
        (SELECT requested_at FROM airflow_horsies.cancel_requests WHERE horsies_task_id = known.horsies_task_id),
        (SELECT updated_at FROM airflow_horsies.progress WHERE horsies_task_id = known.horsies_task_id),
        (
            SELECT logged_at
            FROM airflow_horsies.logs
            WHERE horsies_task_id = known.horsies_task_id
            ORDER BY attempt DESC, line_number DESC
            LIMIT 1
        )
    ) < now() - make_interval(secs => %(older_than_seconds)s::double precision), TRUE) AS is_old
FROM known
ORDER BY known.horsies_task_id
