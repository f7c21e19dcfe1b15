"""The counters of a broker, and its Prometheus endpoint."""
