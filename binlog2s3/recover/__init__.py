"""The command `pitr`: from the bucket to a server, to files or to text."""
