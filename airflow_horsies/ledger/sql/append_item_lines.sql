-- As append_lines, for chunks: each line with the number of the item that wrote it. Tables of older versions lack it.
INSERT INTO airflow_horsies.logs (horsies_task_id, attempt, line_number, logged_at, level, line, item)
SELECT
    %(horsies_task_id)s::uuid, %(attempt)s, chunk.first_number + line.position - 1, chunk.logged_at, chunk.level,
    line.text, chunk.item
FROM unnest(
    %(first_numbers)s::integer[], %(logged_ats)s::timestamptz[], %(levels)s::text[], %(texts)s::text[],
    %(items)s::integer[]
) AS chunk (first_number, logged_at, level, text, item)
CROSS JOIN LATERAL unnest(
    CASE chunk.text WHEN '' THEN ARRAY[''] ELSE string_to_array(chunk.text, E'\n') END
) WITH ORDINALITY AS line (text, position)
ON CONFLICT DO NOTHING
