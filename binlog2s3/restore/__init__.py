"""A base backup and the archive become a server: restored, started, rolled forward, compared."""
