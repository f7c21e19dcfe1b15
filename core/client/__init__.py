"""Clients: protocol state machines without I/O, and the blocking clients over them."""
