"""The command `verify`: what is there, what is harmed, and what can be recovered."""
