"""Binlogs as bytes: names, events, transactions, GTIDs, checksums. Pure, no I/O."""
