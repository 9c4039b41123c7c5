-- What is kept are the newest, by their period.
DELETE FROM airflow_horsies.reports AS old
WHERE
    old.name = %(name)s
    AND (old.period_end, old.period_start) < (
        SELECT kept.period_end, kept.period_start
        FROM airflow_horsies.reports AS kept
        WHERE kept.name = %(name)s
        ORDER BY kept.period_end DESC, kept.period_start DESC
        OFFSET %(keep)s - 1
        LIMIT 1
    )
