"""The commands that administer a cluster: `klamm topics`, `groups`, `cluster`."""
