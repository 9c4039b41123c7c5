-- One more attempt parks in this wait; returns how many attempts of the task have parked.
WITH this AS (
    UPDATE airflow_horsies.parkings
    SET times = times + 1
    WHERE horsies_task_id = %(horsies_task_id)s::uuid AND name = %(name)s AND occurrence = %(occurrence)s
)

SELECT 1 + coalesce(sum(times), 0)::integer AS parked
FROM airflow_horsies.parkings
WHERE horsies_task_id = %(horsies_task_id)s::uuid
