"""The registry as clients use it: the topic of schemas, or a registry that is asked by REST."""
