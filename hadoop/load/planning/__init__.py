"""Plans what a load reads: ranges, bounds, and whether the saved offsets are still valid."""
