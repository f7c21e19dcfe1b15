"""The `embedded` coordination: an SQLite file that the processes of one host share."""
