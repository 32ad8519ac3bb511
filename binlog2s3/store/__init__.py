"""The object store: what is asked of it, and how boto3 answers."""
