"""The commands that look: `list`, `find`, `verify` and `check`."""
