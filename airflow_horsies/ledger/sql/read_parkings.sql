SELECT horsies_task_id::text AS horsies_task_id, name, occurrence, attempt, times, parked_at, due_at
FROM airflow_horsies.parkings
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
ORDER BY horsies_task_id, parked_at
