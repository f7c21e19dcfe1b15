"""What runs beside the requests: services that plugins bring, what they may reach, and periodic maintenance."""
