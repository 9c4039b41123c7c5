"""``python -m airflow_horsies.cli``, for an Airflow that does not know the commands of providers."""

from airflow_horsies.cli.definition import main

main()
