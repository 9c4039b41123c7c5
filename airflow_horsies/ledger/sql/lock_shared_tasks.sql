-- Who lets go of a task that others may share and who takes it up come one after the other, in the order of the ids.
-- Only those are locked that were sent under a key, or by a release that did not say: locks are few, and items many.
SELECT count(pg_advisory_xact_lock(hashtextextended(id, 735))) AS locked
FROM (
    SELECT DISTINCT horsies_task_id::text AS id
    FROM airflow_horsies.submissions
    WHERE horsies_task_id = ANY(%(ids)s::uuid[]) AND (key_digest IS NOT NULL OR work IS NULL)
    ORDER BY 1
) AS ordered
