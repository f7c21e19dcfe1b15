"""The handlers of the broker's APIs: one family per file, and the table that finds the handler."""
