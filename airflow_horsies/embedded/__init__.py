"""Postgres and Java from wheels, the components of Airflow and a horsies worker, for the demo and the tests."""
