"""Built-in envelopes."""
