"""The command `verify`: checks the archive, and shows what can be recovered."""
