"""The command `find`: transactions in the archive by table, time or GTID."""
