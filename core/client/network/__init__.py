"""Connections to brokers: protocol state machine, sockets, pool, metadata, retries."""
