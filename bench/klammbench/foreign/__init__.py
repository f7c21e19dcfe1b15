"""Raw-socket drivers of the other systems, so that the brokers are measured and not their client libraries."""
