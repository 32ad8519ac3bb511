"""Format 1: the keys and documents in the bucket, and how they are read."""
