"""Taking back transactions on the live server."""
