"""The cluster as the coordination stores it: brokers, controller, topics, configs, producer-id blocks."""
