"""The example pipeline's side that runs on horsies workers; its DAGs are flights_daily.py, flights_monthly.py and
flights_models.py.
"""
