-- The first submission after a clear closes the open request. It takes the request if it was made in the life before
-- this one, for this clear as far as that is known, and not long ago. A clear counts, or leaves the run as it was: a run
-- that was created again has another start.
UPDATE airflow_horsies.repairs
SET
    taken_at = now(),
    taken_life = CASE
        WHEN
            %(may_take)s::boolean
            AND life = %(last_life)s
            AND CASE %(clear_number)s::integer - clear_number
                WHEN 0 THEN %(is_same_run)s::boolean OR coalesce(run_started_at = %(run_started_at)s::timestamptz, FALSE)
                WHEN 1 THEN TRUE
                ELSE %(clear_number)s::integer IS NULL
            END
            AND requested_at > now() - make_interval(secs => %(valid_seconds)s::double precision)
            AND (base_url IN (%(base_url)s::text, '') OR %(base_url)s::text = '')
            THEN %(life)s::integer
    END
WHERE
    namespace = %(namespace)s
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
    AND taken_at IS NULL
RETURNING works, occurrences, taken_life
