"""Generations: loads merged into fewer files; what no generation names is collected."""
