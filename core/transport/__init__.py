"""Byte streams under the broker and the clients: two interfaces, their plaintext implementations, and fakes.

`interface.py` defines the operations that a connection may use. A TLS implementation satisfies the same two
protocols (`tests/support/klammtest/tls.py` has one, and `tests/core/transport/test_tls.py` runs broker and clients
over it).
"""
