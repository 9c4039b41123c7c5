INSERT INTO horsies_tasks (
    id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at, good_until,
    claimed, retry_count, max_retries, task_options, enqueue_sha, is_workflow_task, created_at, updated_at
)
SELECT
    new.id, new.task_name, new.queue_name, new.priority, NULL, new.kwargs, 'PENDING',
    least(new.sent_at, now()), now() + make_interval(secs => coalesce(new.delay_seconds, 0)), new.good_until,
    FALSE, 0, new.max_retries, new.task_options, new.enqueue_sha, FALSE, now(), now()
FROM unnest(
    %(ids)s::text[], %(task_names)s::text[], %(queue_names)s::text[], %(priorities)s::integer[],
    %(kwargs)s::text[], %(sent_ats)s::timestamptz[], %(delays)s::integer[], %(good_untils)s::timestamptz[],
    %(max_retries)s::integer[], %(task_options)s::text[], %(enqueue_shas)s::text[]
) AS new (
    id, task_name, queue_name, priority, kwargs, sent_at, delay_seconds, good_until, max_retries,
    task_options, enqueue_sha
)
ON CONFLICT (id) DO NOTHING
RETURNING id::text AS id
