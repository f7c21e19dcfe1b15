"""What the broker does for each API: one family a file, and the table that finds the handler."""
