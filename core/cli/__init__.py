"""The `klamm` command."""
