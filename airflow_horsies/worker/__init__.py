"""The side that runs in horsies workers; it needs the ``worker`` extra and Python 3.13."""
