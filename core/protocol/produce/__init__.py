"""Produce on the wire: requests and responses, and the fast path for requests of one batch."""
