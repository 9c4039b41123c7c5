COPY horsies_tasks (
    id, task_name, queue_name, priority, kwargs, status, sent_at, enqueued_at, good_until,
    claimed, retry_count, max_retries, task_options, enqueue_sha, is_workflow_task, created_at, updated_at
) FROM STDIN
