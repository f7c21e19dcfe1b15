"""Plans a load's read: ranges, bounds, and whether the saved offsets are still valid."""
