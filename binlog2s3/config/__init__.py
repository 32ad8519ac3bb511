"""Options, the values they are judged into, and the configuration file."""
