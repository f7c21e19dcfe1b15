"""The serdes of a topic's section: values of registered schemas, one module for each format."""
