"""What the coordination stores about one broker: its registration, incarnation, log directory and configuration."""
