"""Replication in the broker: replicas and their roles, the fetches of followers, changes of the in-sync replicas."""
