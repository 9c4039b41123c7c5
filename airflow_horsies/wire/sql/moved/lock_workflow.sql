-- First of all locks: horsies, too, locks a workflow before its nodes.
SELECT w.status
FROM horsies_workflows AS w
WHERE w.id = %(id)s::uuid
FOR UPDATE
