-- A try that sends nothing records its number, so that an earlier try that Airflow gave up does not undo its work.
UPDATE airflow_horsies.submissions
SET seen_try = %(try_number)s
WHERE
    namespace = %(namespace)s
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
    AND life = %(life)s
    AND position = %(position)s
    AND round = %(round)s
