"""What is taken from private parts of Airflow, horsies and pyspark, all of it here.

Each part says in which release it was read. ``tests/unit/borrowed`` fails when one of them moves.
"""
