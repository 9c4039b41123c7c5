-- Serialises who sends, takes or waits for a signal: one of them sees what the other has done. Before any lock of a task.
SELECT pg_advisory_xact_lock(hashtextextended(target.id::text || ' ' || %(name)s, 733)) AS locked
FROM (SELECT unnest(%(targets)s::uuid[]) AS id ORDER BY 1) AS target
