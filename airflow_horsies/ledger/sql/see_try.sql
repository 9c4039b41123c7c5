-- A try that sends nothing leaves its number behind, so that an earlier one that was taken for dead undoes nothing.
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
