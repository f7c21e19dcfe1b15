"""Requests about the cluster: brokers, elections, reassignments, log directories."""
