"""Requests about topics: create, delete, add partitions, describe."""
