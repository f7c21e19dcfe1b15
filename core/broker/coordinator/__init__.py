"""The broker's part of classic groups: stores their state and keeps their calls in order."""
