"""One page for people who look at an archive, or are shown it."""
