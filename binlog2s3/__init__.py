"""Stream MySQL and MariaDB binary logs into S3 as they are written."""

__version__ = "0.3.0"
