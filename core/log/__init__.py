"""The log: topic partitions as segments on disk."""
