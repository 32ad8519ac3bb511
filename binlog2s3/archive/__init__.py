"""Format 1: what lies in the bucket, and how it is read."""
