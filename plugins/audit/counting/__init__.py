"""What the tiers count, by topic and window of record time: producer, broker, consumer, load."""
