"""The example pipeline's side that runs on horsies workers; its DAGs are flights_daily.py and flights_monthly.py."""
