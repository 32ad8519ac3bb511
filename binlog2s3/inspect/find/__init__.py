"""The command `find`: finds transactions in the archive by table, time or GTID."""
