-- Serialises the release and the reuse of shared tasks, in the order of the ids. Only tasks with a key are locked, or
-- those of a release that did not record it, because there are few locks and many items.
SELECT count(pg_advisory_xact_lock(hashtextextended(id, 735))) AS locked
FROM (
    SELECT DISTINCT horsies_task_id::text AS id
    FROM airflow_horsies.submissions
    WHERE horsies_task_id = ANY(%(ids)s::uuid[]) AND (key_digest IS NOT NULL OR work IS NULL)
    ORDER BY 1
) AS ordered
