"""Opens logs: uses the files of a clean stop as they are, and checks those of a crash."""
