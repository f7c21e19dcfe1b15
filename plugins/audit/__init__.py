"""Built-in audit."""
