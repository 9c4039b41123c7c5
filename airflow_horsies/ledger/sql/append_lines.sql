-- Lines come in chunks of one time and level. A line that is written again after a lost connection is not duplicated.
INSERT INTO airflow_horsies.logs (horsies_task_id, attempt, line_number, logged_at, level, line)
SELECT
    %(horsies_task_id)s::uuid, %(attempt)s, chunk.first_number + line.position - 1, chunk.logged_at, chunk.level,
    line.text
FROM unnest(
    %(first_numbers)s::integer[], %(logged_ats)s::timestamptz[], %(levels)s::text[], %(texts)s::text[]
) AS chunk (first_number, logged_at, level, text)
CROSS JOIN LATERAL unnest(
    -- An empty text is one empty line; the function would return no row.
    CASE chunk.text WHEN '' THEN ARRAY[''] ELSE string_to_array(chunk.text, E'\n') END
) WITH ORDINALITY AS line (text, position)
ON CONFLICT DO NOTHING
