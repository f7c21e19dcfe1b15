"""Generations: loads merged into fewer files, and the removal of garbage."""
