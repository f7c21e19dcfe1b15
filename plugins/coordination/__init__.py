"""Built-in coordination."""
