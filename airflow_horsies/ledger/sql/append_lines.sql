-- Written again after a lost connection, a line is the same line.
INSERT INTO airflow_horsies.logs (horsies_task_id, attempt, line_number, logged_at, level, line)
SELECT %(horsies_task_id)s::uuid, %(attempt)s, new.line_number, new.logged_at, new.level, new.line
FROM unnest(
    %(line_numbers)s::integer[], %(logged_ats)s::timestamptz[], %(levels)s::text[], %(lines)s::text[]
) AS new (line_number, logged_at, level, line)
ON CONFLICT DO NOTHING
