UPDATE horsies_workflows
SET status = 'CANCELLED', updated_at = now()
WHERE id = %(id)s::uuid AND status IN ('PENDING', 'RUNNING', 'PAUSED')
RETURNING id::text AS id
