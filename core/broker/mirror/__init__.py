"""Mirrors in the broker: links to other clusters, and the fetches of the partitions that this broker leads
(docs/mirror.md)."""
