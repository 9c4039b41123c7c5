-- The size of tables with their partitions, in bytes; missing tables count as empty.
SELECT
    coalesce(sum(pg_relation_size(known.oid)), 0)::bigint + coalesce(sum((
        SELECT sum(pg_relation_size(tree.relid)) FROM pg_partition_tree(known.oid) AS tree WHERE tree.isleaf
    )), 0)::bigint AS bytes
FROM (SELECT to_regclass(name) AS oid FROM unnest(%(names)s::text[]) AS name) AS known
