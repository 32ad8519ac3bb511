"""The streamer: from the source through the spool into the bucket."""
