SELECT now() AS at
