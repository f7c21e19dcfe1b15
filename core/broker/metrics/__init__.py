"""What a broker counts, and its Prometheus endpoint."""
