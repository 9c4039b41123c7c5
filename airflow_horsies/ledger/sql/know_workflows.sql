-- For the transaction: its deletes may concern workflows. The triggers of our tables keep these from older releases.
SELECT set_config('airflow_horsies.knows_workflows', 'on', TRUE)
