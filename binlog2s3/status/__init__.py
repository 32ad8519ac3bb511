"""What is known of a stream, and the ways in which it is said."""
