-- Retention classes whose tasks cannot end now, because their history has no partition for the current time. Read from
-- the catalogs of Postgres, which every user may read; the catalog of horsies needs a privilege.
SELECT substring(pg_get_expr(class.relpartbound, class.oid) FROM '''(.*)''') AS class_key
FROM pg_inherits AS of_history
INNER JOIN pg_class AS class ON class.oid = of_history.inhrelid
WHERE of_history.inhparent = to_regclass('horsies_task_history')
    AND NOT EXISTS (
        SELECT
        FROM pg_inherits AS of_class
        INNER JOIN pg_class AS leaf ON leaf.oid = of_class.inhrelid
        CROSS JOIN LATERAL pg_get_expr(leaf.relpartbound, leaf.oid) AS bound
        WHERE of_class.inhparent = class.oid
            AND now() >= coalesce(substring(bound FROM 'FROM \(''([^'']*)''\)')::timestamptz, '-infinity')
            AND now() < coalesce(substring(bound FROM 'TO \(''([^'']*)''\)')::timestamptz, 'infinity')
    )
ORDER BY class_key
