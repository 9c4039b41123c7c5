-- A page of the given tasks in the order of one column, and their total number. NULL comes last in both directions; the
-- id breaks ties.
WITH found AS (
    SELECT
        t.id, t.status,
        CASE %(sort)s::text
            WHEN 'attempts' THEN (SELECT count(*) FROM horsies_task_attempts AS a WHERE a.task_id = t.id)
            WHEN 'duration' THEN
                CASE
                    WHEN t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
                        THEN extract(EPOCH FROM coalesce(t.completed_at, t.failed_at, t.updated_at) - t.started_at)
                END
        END::float8 AS figure,
        CASE %(sort)s::text
            WHEN 'state' THEN t.status::text
            WHEN 'error_code' THEN t.error_code
            WHEN 'hostname' THEN t.worker_hostname
        END AS word
    FROM horsies_tasks AS t
    WHERE t.id = ANY(%(ids)s::text[])
),
wanted AS (
    SELECT
        asked.id, asked.place,
        CASE WHEN %(sort)s::text = 'position' THEN asked.place ELSE found.figure END AS figure, found.word
    FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS asked (id, place)
    LEFT JOIN found ON found.id = asked.id
    WHERE %(state)s::text IS NULL OR found.status::text = %(state)s::text
),
numbered AS (
    SELECT
        wanted.id,
        row_number() OVER (
            ORDER BY
                wanted.figure IS NULL AND wanted.word IS NULL,
                CASE WHEN %(descending)s::boolean THEN -wanted.figure ELSE wanted.figure END,
                CASE WHEN NOT %(descending)s::boolean THEN wanted.word END COLLATE "C",
                CASE WHEN %(descending)s::boolean THEN wanted.word END COLLATE "C" DESC,
                CASE
                    WHEN %(descending)s::boolean AND (wanted.figure IS NOT NULL OR wanted.word IS NOT NULL)
                        THEN -wanted.place
                    ELSE wanted.place
                END
        ) AS number
    FROM wanted
),
page AS (
    SELECT id, number FROM numbered WHERE number > %(offset)s AND number <= %(offset)s::bigint + %(limit)s
)
SELECT total.count AS total, page.id::text AS id
FROM (SELECT count(*) AS count FROM wanted) AS total
LEFT JOIN page ON TRUE
ORDER BY page.number
