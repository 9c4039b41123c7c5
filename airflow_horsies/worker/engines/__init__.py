"""Spark, wherever its driver is: in a JVM of the child, or behind a Spark Connect server."""
