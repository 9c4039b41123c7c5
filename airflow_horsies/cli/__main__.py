"""``python -m airflow_horsies.cli``, for an Airflow without support for the commands of providers."""

from airflow_horsies.cli.definition import main

main()
