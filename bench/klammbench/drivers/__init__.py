"""What loads the systems; each in processes of its own."""
