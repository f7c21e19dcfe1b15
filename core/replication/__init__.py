"""Replication: leader, follower, in-sync replicas and elections, as state machines without I/O, threads or clocks."""
