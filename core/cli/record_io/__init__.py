"""`klamm produce`, `consume` and `sink`, and their parts: lines, formats, positions, signals, clients."""
