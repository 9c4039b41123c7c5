INSERT INTO horsies_tasks (
    id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at, good_until,
    claimed, retry_count, max_retries, task_options, enqueue_sha, is_workflow_task, created_at, updated_at,
    command_fingerprint_version, command_fingerprint, input_digest, retention_class_key, retain_rerun_input,
    idempotency_key_digest, prepared_rerun_input_disposition, prepared_rerun_input_version,
    prepared_rerun_input_codec, prepared_rerun_input_content_type, prepared_rerun_input_digest,
    prepared_rerun_input_inline
)
SELECT
    new.id, new.task_name, new.queue_name, new.priority, NULL, new.kwargs, 'PENDING',
    least(new.sent_at, now()), now() + make_interval(secs => coalesce(new.delay_seconds, 0)), new.good_until,
    FALSE, 0, new.max_retries, new.task_options, new.enqueue_sha, FALSE, now(), now(),
    1, new.command_fingerprint, new.input_digest, new.retention_class_key, new.retain_rerun_input,
    new.idempotency_digest, new.rerun_disposition,
    CASE WHEN new.rerun_input IS NOT NULL THEN 1 END,
    CASE WHEN new.rerun_input IS NOT NULL THEN 'json-utf8' END,
    CASE WHEN new.rerun_input IS NOT NULL THEN 'application/json' END,
    CASE WHEN new.rerun_input IS NOT NULL THEN new.input_digest END,
    new.rerun_input
FROM json_to_recordset(%(tasks)s::json) AS new (
    id uuid, task_name text, queue_name text, priority integer, kwargs text, sent_at timestamptz,
    delay_seconds integer, good_until timestamptz, max_retries integer, task_options text, enqueue_sha text,
    command_fingerprint bytea, input_digest bytea, retention_class_key text, retain_rerun_input boolean,
    idempotency_digest bytea, rerun_disposition text, rerun_input bytea
)
