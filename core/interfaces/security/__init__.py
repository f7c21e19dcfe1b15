"""The interfaces of access control: who a client is, and what it may do."""
