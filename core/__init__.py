"""The minimal core: log, broker, consumer group, clients, and the seams that plugins fill."""
