"""Avro: schemas parsed, printed, compared and resolved. Values are in `values`."""
