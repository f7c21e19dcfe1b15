"""Avro payloads as Arrow columns: types, decoding with the writer's schema, resolution to the reader's (design D13)."""
