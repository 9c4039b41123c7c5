-- A sample of the tables, in order, to divide them into parts of similar size. The attempts of a finished task are one
-- value, so tasks are counted; a task that ended more than a day before the first time has no attempt after it.
SELECT sampled.at, sampled.id::text AS key
FROM (
    SELECT t.enqueued_at AS at, t.id, NULL::timestamptz AS ended_at
    FROM horsies_tasks AS t TABLESAMPLE SYSTEM (%(percent)s::float4)
    UNION ALL
    SELECT h.enqueued_at, h.task_id, h.retention_anchor_at
    FROM horsies_task_history AS h TABLESAMPLE SYSTEM (%(percent)s::float4)
) AS sampled
WHERE
    %(since)s::timestamptz IS NULL OR sampled.ended_at IS NULL
    OR sampled.ended_at >= %(since)s::timestamptz - interval '1 day'
ORDER BY sampled.at, sampled.id
