"""Keeping what is needed: registered base backups, and what is pruned."""
