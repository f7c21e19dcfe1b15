"""The topic of schemas as a table in memory, in Confluent's format; no I/O, no threads.

`schema` has a schema's content and identity, `records` the records of the topic, `schema_store` the table,
`registration` the records that a new version is made of.
"""
