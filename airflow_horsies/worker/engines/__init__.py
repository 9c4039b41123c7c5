"""Spark with its driver in a JVM of the child, or on a Spark Connect server."""
