-- One round trip: the workflow, its nodes, and the tasks of those that wait for no other; nothing if the id is taken.
-- Returns the id if the workflow was started now.
WITH started AS (
    INSERT INTO horsies_workflows (
        id, name, status, on_error, output_task_index, success_policy, definition_key,
        depth, root_workflow_id, sent_at, created_at, started_at, updated_at
    )
    VALUES (
        %(id)s::uuid, %(name)s, 'RUNNING', %(on_error)s, %(output_index)s::integer, %(success_policy)s::jsonb,
        %(definition_key)s, 0, %(id)s::uuid, least(%(sent_at)s::timestamptz, now()), now(), now(), now()
    )
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),
nodes AS (
    INSERT INTO horsies_workflow_tasks (
        id, workflow_id, task_index, node_id, task_name, task_args, task_kwargs, queue_name, priority, dependencies,
        args_from, allow_failed_deps, join_type, min_success, task_options, status, task_id,
        is_subworkflow, sub_workflow_name, sub_definition_key, started_at, created_at
    )
    SELECT
        gen_random_uuid(), started.id, new.task_index, new.node_id, new.task_name, '[]', new.kwargs, new.queue_name,
        new.priority, new.dependencies, new.args_from, new.allow_failed_deps, new.join_type, new.min_success,
        new.task_options, CASE WHEN new.task_id IS NULL THEN 'PENDING' ELSE 'ENQUEUED' END, new.task_id,
        new.definition_key IS NOT NULL, new.definition_key, new.definition_key,
        CASE WHEN new.task_id IS NOT NULL THEN now() END, now()
    FROM started
    CROSS JOIN json_to_recordset(%(nodes)s::json) AS new (
        task_index integer, node_id text, task_name text, kwargs text, queue_name text, priority integer,
        dependencies integer[], args_from jsonb, allow_failed_deps boolean, join_type text, min_success integer,
        task_options text, task_id uuid, definition_key text
    )
),
tasks AS (
    INSERT INTO horsies_tasks (
        id, task_name, queue_name, priority, args, kwargs, status, sent_at, enqueued_at, good_until, claimed,
        retry_count, max_retries, task_options, enqueue_sha, is_workflow_task, created_at, updated_at,
        command_fingerprint_version, command_fingerprint, retention_class_key, retain_rerun_input,
        prepared_rerun_input_disposition
    )
    SELECT
        new.id, new.task_name, new.queue_name, new.priority, '[]', new.kwargs, 'PENDING', least(new.sent_at, now()),
        now(), new.good_until, FALSE, 0, new.max_retries, new.task_options, new.enqueue_sha, TRUE, now(), now(),
        1, new.command_fingerprint, new.retention_class_key, FALSE, 'NEVER_ELIGIBLE'
    FROM started
    CROSS JOIN json_to_recordset(%(tasks)s::json) AS new (
        id uuid, task_name text, queue_name text, priority integer, kwargs text, sent_at timestamptz,
        max_retries integer, task_options text, good_until timestamptz, enqueue_sha text, command_fingerprint bytea,
        retention_class_key text
    )
)
SELECT id::text AS id FROM started
