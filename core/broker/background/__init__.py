"""The work beside the requests: services of plugins, the context that they are given, and periodic maintenance."""
