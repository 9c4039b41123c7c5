"""Every use of a private part of Airflow, horsies and pyspark.

Each module names the releases it was read in. ``tests/unit/borrowed`` fails when a private part changes.
"""
