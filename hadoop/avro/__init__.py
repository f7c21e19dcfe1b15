"""Spark's own Avro package, which PySpark does not bring: for lakes with `format: avro`."""
