"""Readers of partitions without a consumer group: one partition, a range of its offsets, a topic as a table."""
