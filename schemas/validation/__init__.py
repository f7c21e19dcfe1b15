"""Validation on the broker: records whose keys or values lack a schema are refused before they are stored."""
