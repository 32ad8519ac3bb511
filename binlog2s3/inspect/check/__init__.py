"""The command `check`: tests everything that a streamer needs, before it is needed."""
