"""The client of all rooms above: calls on the database, the horsies schema and our own tables."""
