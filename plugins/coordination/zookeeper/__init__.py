"""The `zookeeper` coordination, and a development server for it."""
