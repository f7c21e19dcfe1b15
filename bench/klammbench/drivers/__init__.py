"""The load generators; each runs in its own processes."""
