"""The coordinator of classic groups: a state machine without I/O."""
