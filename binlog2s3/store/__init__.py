"""The object store: what is asked of it, and how botocore answers."""
