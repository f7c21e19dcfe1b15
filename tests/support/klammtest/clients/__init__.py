"""Clients that tests use: foreign ones, and Klamm's own with their groups."""
