"""The producer: records wait in batches by partition and are sent by one thread."""
