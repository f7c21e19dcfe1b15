"""Avro values to bytes and back, from dicts, dataclasses and JSON."""
