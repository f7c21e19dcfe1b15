"""The `etcd` coordination, and a development server for it."""
