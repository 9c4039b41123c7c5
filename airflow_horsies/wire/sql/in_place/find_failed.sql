-- The failed and expired tasks among a bounded number of tasks before a given one: an unbounded search could read
-- millions of completed tasks. The searched range is returned even if nothing is found.
WITH searched AS MATERIALIZED (
    SELECT t.id, t.status, t.enqueued_at
    FROM horsies_tasks AS t
    WHERE
        %(before_at)s::timestamptz IS NULL
        OR (t.enqueued_at, t.id) < (%(before_at)s::timestamptz, %(before_id)s::text)
    ORDER BY t.enqueued_at DESC, t.id DESC
    LIMIT %(window)s
),
span AS (
    SELECT count(*) AS searched FROM searched
),
last_searched AS (
    SELECT enqueued_at, id FROM searched ORDER BY enqueued_at, id LIMIT 1
)
SELECT
    span.searched, last_searched.enqueued_at AS searched_to, last_searched.id::text AS last_id,
    searched.id::text AS id, searched.enqueued_at
FROM span
LEFT JOIN last_searched ON TRUE
LEFT JOIN searched ON searched.status IN ('FAILED', 'EXPIRED')
ORDER BY searched.enqueued_at DESC, searched.id DESC
LIMIT %(limit)s
