"""A member's side of a group: registry and classic."""
