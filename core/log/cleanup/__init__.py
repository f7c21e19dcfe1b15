"""Retention, compaction and the scrubber."""
