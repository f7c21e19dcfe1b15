"""The coordination's data about one broker: its registration, incarnation, log directory and configuration."""
