INSERT INTO horsies_tasks (
    id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at, good_until,
    claimed, retry_count, max_retries, task_options, enqueue_sha, is_workflow_task, created_at, updated_at
)
SELECT
    new.id, new.task_name, new.queue_name, new.priority, NULL, new.kwargs, 'PENDING',
    least(new.sent_at, now()), now() + make_interval(secs => coalesce(new.delay_seconds, 0)), new.good_until,
    FALSE, 0, new.max_retries, new.task_options, new.enqueue_sha, FALSE, now(), now()
FROM json_to_recordset(%(tasks)s::json) AS new (
    id text, task_name text, queue_name text, priority integer, kwargs text, sent_at timestamptz,
    delay_seconds integer, good_until timestamptz, max_retries integer, task_options text, enqueue_sha text
)
