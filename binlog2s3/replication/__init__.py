"""A replication source: what replicas and other clients of a server's binlogs are sent."""
