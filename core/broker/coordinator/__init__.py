"""The broker's part of groups: their state kept, their calls in order."""
