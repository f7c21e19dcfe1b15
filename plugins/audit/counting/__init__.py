"""The counts of the tiers by topic and window of record time: producer, broker, consumer, load."""
