-- Pages that tasks made, for Airflow's web server to show, which need not see the files of a worker.
CREATE TABLE airflow_horsies.reports (
    name text NOT NULL,
    period_start timestamptz NOT NULL,
    period_end timestamptz NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    location text NOT NULL,
    page text NOT NULL,
    PRIMARY KEY (name, period_start, period_end)
);
