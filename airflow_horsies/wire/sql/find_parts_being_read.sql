SELECT held.objid::bigint AS part
FROM pg_locks AS held
WHERE
    held.locktype = 'advisory' AND held.classid = %(read_key)s::bigint::oid AND held.objsubid = 2 AND held.granted
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
