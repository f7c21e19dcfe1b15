"""Opening logs: what a clean stop left is believed, what a crash left is checked."""
