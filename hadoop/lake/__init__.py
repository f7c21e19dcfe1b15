"""A lake read without a JVM: its files, its manifests, and the proof that it holds each offset once."""
