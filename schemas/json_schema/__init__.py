"""JSON Schema in the registry: `schema.parse` checks a text, `comparison.differences` compares two schemas. No I/O:
references are passed in, `$ref` is never retrieved, and no regular expression of a schema is run by an engine that can
backtrack.

Needs the packages of the extra `registry`.
"""
