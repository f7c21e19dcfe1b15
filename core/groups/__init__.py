"""Consumer groups: the classic protocol's coordinator, the paper's registry groups, and the two doors to both."""
