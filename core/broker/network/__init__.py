"""Connections of a broker: accepted, read, written, limited."""
