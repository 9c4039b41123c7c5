"""Values and rules; the standard library only."""
