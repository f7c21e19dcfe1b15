"""The seams: what a plugin implements, one protocol a file, and no code that does any of it."""
