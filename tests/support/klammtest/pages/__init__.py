"""Pages of the docs: run, illustrated, and filled with figures."""
