"""`python -m binlog2s3` is the command `binlog2s3`."""

from binlog2s3.cli.main import main

main()
