-- The attempts of the tasks that a range of transactions moved to the history. A row has 32 of the 64 bits of its
-- transaction: it is the last one with these bits that is visible here. The time limits the scan to recent partitions.
SELECT
    h.task_id, h.task_name::text AS task_name, h.queue_name::text AS queue, (a.fields ->> 0)::integer AS attempt,
    a.fields ->> 1 AS outcome, (a.fields ->> 2)::boolean AS will_retry,
    timestamptz 'epoch' + (a.fields ->> 3)::bigint * interval '1 microsecond' AS started_at,
    timestamptz 'epoch' + (a.fields ->> 4)::bigint * interval '1 microsecond' AS finished_at,
    a.fields ->> 5 AS error_code, a.fields ->> 6 AS error_message, a.fields ->> 7 AS failed_reason,
    a.fields ->> 8 AS worker_id, a.fields ->> 9 AS hostname, (a.fields ->> 10)::integer AS pid,
    a.fields ->> 11 AS process_name
FROM horsies_task_history AS h
CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS number) AS now_at
CROSS JOIN LATERAL jsonb_array_elements(convert_from(h.attempt_snapshot, 'UTF8')::jsonb) AS a (fields)
WHERE
    (%(since)s::timestamptz IS NULL OR h.retention_anchor_at >= %(since)s::timestamptz - interval '1 hour')
    AND now_at.number - ((now_at.number - h.xmin::text::bigint) & 4294967295) >= %(from_transaction)s::bigint
    AND now_at.number - ((now_at.number - h.xmin::text::bigint) & 4294967295) < %(to_transaction)s::bigint
