"""The broker's session with the coordination: for how long it is certain to be alive, and what may be acknowledged."""
