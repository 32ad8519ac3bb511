"""`drill`: a base backup and the archive are restored for real, checked, and removed again."""
