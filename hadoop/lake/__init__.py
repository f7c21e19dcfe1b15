"""Reads a lake without a JVM: its files, its manifests, and the proof that it contains each offset once."""
