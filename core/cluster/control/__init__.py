"""The controller: its election, and what it writes after brokers, reports or configurations have changed."""
