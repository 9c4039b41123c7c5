"""Postgres and a JRE from wheels, Airflow's components and a horsies worker, for demo and tests."""
