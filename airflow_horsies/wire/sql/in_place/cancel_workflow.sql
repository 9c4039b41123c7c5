UPDATE horsies_workflows
SET status = 'CANCELLED', updated_at = now()
WHERE id = %(id)s::text AND status IN ('PENDING', 'RUNNING', 'PAUSED')
RETURNING id::text AS id
