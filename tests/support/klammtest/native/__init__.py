"""The compiled module against its twin in Python."""
