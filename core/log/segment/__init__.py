"""Segments: files of record batches with their indexes, read and searched."""
