"""`klamm mirror`: links, the state of what they copy, and both ways to end or take back a mirror (docs/mirror.md)."""
