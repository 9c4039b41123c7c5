-- A parked attempt counts as a retry of horsies. It is added to the retries of the policy, so that the author's own
-- retries remain. Call it only while the transaction holds the claim of the task.
UPDATE horsies_tasks
SET max_retries = %(max_retries)s
WHERE id = %(id)s AND status = 'RUNNING' AND max_retries < %(max_retries)s
