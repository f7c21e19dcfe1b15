"""What a load reads: ranges, bounds, and whether the saved offsets still hold."""
