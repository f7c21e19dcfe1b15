"""The consumer: positions, fetches, delivery to the application, commits."""
