"""Memberships of one cluster in this process, and parts of its metadata images."""
