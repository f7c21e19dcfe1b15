"""Built-in offsets."""
