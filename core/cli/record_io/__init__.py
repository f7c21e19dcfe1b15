"""The parts of `klamm produce` and `klamm consume`: lines, formats, positions, signals, clients."""
