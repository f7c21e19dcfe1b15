"""`make avro-judge`: Klamm's three ways to read and write Avro, and its check of compatibility, beside Apache Avro for
Java.

`schemas` and `values` generate cases, `evolution` derives the reader's schema, `java_avro` asks the judge, `klamm_avro`
asks Klamm, `comparison` finds what differs and `rules` has the differences that are wanted.
"""
