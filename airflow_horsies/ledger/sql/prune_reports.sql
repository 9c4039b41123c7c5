-- Keeps the newest reports of a name, by period, and the newest of all, by the time of creation.
DELETE FROM airflow_horsies.reports AS old
WHERE
    (
        old.name = %(name)s
        AND (old.period_end, old.period_start) < (
            SELECT kept.period_end, kept.period_start
            FROM airflow_horsies.reports AS kept
            WHERE kept.name = %(name)s
            ORDER BY kept.period_end DESC, kept.period_start DESC
            OFFSET %(keep)s - 1
            LIMIT 1
        )
    )
    OR old.made_at < (
        SELECT kept.made_at
        FROM airflow_horsies.reports AS kept
        ORDER BY kept.made_at DESC
        OFFSET %(keep_of_all)s - 1
        LIMIT 1
    )
