-- The newest signals of tasks and workflows. Long payloads are left out: a part of one could not be masked.
SELECT
    target::text AS target, name, sent_at, sent_by, consumed_attempt, consumed_at,
    CASE WHEN octet_length(payload) <= %(payload_bytes)s::integer THEN payload END AS payload,
    octet_length(payload) > %(payload_bytes)s::integer AS is_payload_cut
FROM airflow_horsies.messages
WHERE target = ANY(%(targets)s::uuid[])
ORDER BY number DESC
LIMIT %(limit)s
