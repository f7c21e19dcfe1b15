"""Consumer groups: the classic protocol's coordinator, the paper's registry groups, and the lock that keeps a group to
one protocol."""
