"""Spark's own Avro package, which PySpark does not include: for lakes with `format: avro`."""
