-- A page of the given tasks in the order of one column, and their total number. NULL comes last in both directions; the
-- id breaks ties.
WITH found AS (
    SELECT
        t.id, t.status,
        CASE %(sort)s::text
            WHEN 'attempts' THEN (SELECT count(*) FROM horsies_task_attempts AS a WHERE a.task_id = t.id)
        END::float8 AS figure,
        CASE %(sort)s::text
            WHEN 'state' THEN t.status WHEN 'error_code' THEN t.error_code WHEN 'hostname' THEN t.worker_hostname
        END AS word
    FROM horsies_tasks AS t
    WHERE t.id = ANY(%(ids)s::uuid[])
    UNION ALL
    SELECT
        h.task_id, h.status,
        CASE %(sort)s::text
            WHEN 'attempts' THEN json_array_length(convert_from(h.attempt_snapshot, 'UTF8')::json)
            WHEN 'duration' THEN extract(EPOCH FROM h.terminal_at - h.started_at)
        END::float8,
        CASE %(sort)s::text
            WHEN 'state' THEN h.status WHEN 'error_code' THEN h.error_code WHEN 'hostname' THEN h.last_worker_hostname
        END
    FROM horsies_task_history AS h
    WHERE h.task_id = ANY(%(ids)s::uuid[])
),
wanted AS (
    SELECT
        asked.id, asked.place,
        CASE WHEN %(sort)s::text = 'position' THEN asked.place ELSE found.figure END AS figure, found.word
    FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS asked (id, place)
    LEFT JOIN found ON found.id = asked.id
    WHERE %(state)s::text IS NULL OR found.status = %(state)s::text
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
