-- No release reports its version; the names of its settings differ between releases.
SELECT DISTINCT ON (state.worker_id)
    state.worker_id,
    state.worker_started_at,
    CASE
        WHEN jsonb_typeof(state.recovery_config::jsonb) = 'object'
            THEN ARRAY(SELECT jsonb_object_keys(state.recovery_config::jsonb))
        ELSE ARRAY[]::text[]
    END AS settings
FROM horsies_worker_states AS state
WHERE state.worker_id = ANY(%(worker_ids)s::text[])
ORDER BY state.worker_id, state.snapshot_at DESC
