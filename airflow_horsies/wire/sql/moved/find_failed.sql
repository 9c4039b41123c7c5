-- The failed and expired tasks among a bounded number of tasks before a given one: there is no index of failed tasks,
-- and an unbounded search would read millions of completed ones. The searched range is returned even if nothing is
-- found.
WITH searched AS MATERIALIZED (
    SELECT h.task_id, h.status, h.enqueued_at
    FROM horsies_task_history AS h
    WHERE
        %(before_at)s::timestamptz IS NULL
        OR (h.enqueued_at, h.task_id) < (%(before_at)s::timestamptz, %(before_id)s::uuid)
    ORDER BY h.enqueued_at DESC, h.task_id DESC
    LIMIT %(window)s
),
span AS (
    SELECT count(*) AS searched FROM searched
),
last_searched AS (
    SELECT enqueued_at, task_id FROM searched ORDER BY enqueued_at, task_id LIMIT 1
)
SELECT
    span.searched, last_searched.enqueued_at AS searched_to, last_searched.task_id::text AS last_id,
    searched.task_id::text AS id, searched.enqueued_at
FROM span
LEFT JOIN last_searched ON TRUE
LEFT JOIN searched ON searched.status IN ('FAILED', 'EXPIRED')
ORDER BY searched.enqueued_at DESC, searched.task_id DESC
LIMIT %(limit)s
