-- The last tasks that others requested with these idempotency keys and still need.
SELECT key_digest, work, horsies_task_id::text AS horsies_task_id
FROM airflow_horsies.known_submissions
WHERE key_digest = ANY(%(digests)s::bytea[]) AND work IS NOT NULL AND is_latest AND released_at IS NULL
ORDER BY submitted_at DESC
