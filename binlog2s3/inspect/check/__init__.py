"""The command `check`: everything that a streamer needs, looked at before it is needed."""
