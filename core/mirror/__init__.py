"""A topic that follows a topic of another cluster: the rules M1 to M13 of docs/mirror.md, without I/O and threads."""
