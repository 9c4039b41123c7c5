-- Whether the tables have had chunks for less than this time: workers notice it after a moment.
SELECT EXISTS (
    SELECT FROM airflow_horsies.migrations
    WHERE version = %(version)s AND applied_at > now() - make_interval(secs => %(seconds)s)
) AS is_new
