"""Quick raw-socket drivers of the other systems, so that the brokers are measured, not client libraries."""
