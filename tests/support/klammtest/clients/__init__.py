"""Clients, foreign ones and Klamm's own, as tests use them."""
