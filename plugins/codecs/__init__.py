"""Built-in codecs."""
