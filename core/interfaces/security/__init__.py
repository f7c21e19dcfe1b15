"""The interfaces of access control: a client's identity, and its permissions."""
