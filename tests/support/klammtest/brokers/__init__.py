"""Brokers that are not a `RunningBroker`: in process, scripted, with a lake beside them, as a new user starts one."""
