"""What a log keeps beside its records: producers, leader epochs, checkpoints, topic id."""
