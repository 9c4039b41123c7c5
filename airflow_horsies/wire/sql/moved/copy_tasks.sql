COPY horsies_tasks (
    id, task_name, queue_name, priority, kwargs, status, sent_at, enqueued_at, good_until,
    claimed, retry_count, max_retries, task_options, enqueue_sha, is_workflow_task, created_at, updated_at,
    command_fingerprint_version, command_fingerprint, input_digest, retention_class_key, retain_rerun_input,
    idempotency_key_digest, prepared_rerun_input_disposition, prepared_rerun_input_version,
    prepared_rerun_input_codec, prepared_rerun_input_content_type, prepared_rerun_input_digest,
    prepared_rerun_input_inline
) FROM STDIN
