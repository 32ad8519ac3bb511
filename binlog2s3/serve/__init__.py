"""The command `serve`: the archive as a replication source for anybody."""
