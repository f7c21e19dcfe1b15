"""Built-in sinks."""
