"""Brokers other than `RunningBroker`: in process, scripted, with a lake beside them, started as by a new user."""
