"""The Airflow UI: a plugin that declares, and the routes behind it."""
