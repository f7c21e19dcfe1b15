"""The simulation of replication: the production state machines under virtual time and faults."""
