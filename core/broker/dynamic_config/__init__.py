"""Configuration of a running broker: the file read again, and over it what the cluster stores (KIP-226)."""
