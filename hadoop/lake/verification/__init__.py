"""Proves that a lake holds each offset once, and names what is damaged."""
