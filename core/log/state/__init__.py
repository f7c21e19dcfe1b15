"""The state of a log besides its records: producers, leader epochs, checkpoints, topic id."""
