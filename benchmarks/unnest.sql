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
FROM unnest(
    %(ids)s::uuid[], %(task_names)s::text[], %(queue_names)s::text[], %(priorities)s::integer[],
    %(kwargs)s::text[], %(sent_ats)s::timestamptz[], %(delays)s::integer[], %(good_untils)s::timestamptz[],
    %(max_retries)s::integer[], %(task_options)s::text[], %(enqueue_shas)s::text[],
    %(command_fingerprints)s::bytea[], %(input_digests)s::bytea[], %(retention_class_keys)s::text[],
    %(retain_rerun_inputs)s::boolean[], %(idempotency_digests)s::bytea[], %(rerun_dispositions)s::text[],
    %(rerun_inputs)s::bytea[]
) AS new (
    id, task_name, queue_name, priority, kwargs, sent_at, delay_seconds, good_until, max_retries,
    task_options, enqueue_sha, command_fingerprint, input_digest, retention_class_key, retain_rerun_input,
    idempotency_digest, rerun_disposition, rerun_input
)
