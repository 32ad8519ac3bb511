"""Taking back transactions on the living server."""
