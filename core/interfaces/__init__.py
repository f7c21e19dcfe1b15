"""The interfaces that plugins implement, one protocol a file, without implementation."""
