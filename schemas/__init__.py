"""Schemas: the registry in a topic, compatibility, typed Avro serdes."""
