"""Brokers other than the usual process, and what is asked of one."""
