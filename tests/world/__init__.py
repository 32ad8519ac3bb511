"""The world of the tests with real servers, each idea once.

servers     what a server holds and says, images of one, a replica of one
archive     the bucket: when all has arrived, and whether each byte is of the right history
commands    `binlog2s3` as users call it on a bucket, with credentials that may only read
pair        a source and a target that replicates its binlogs from us
streamed    a source that is streamed into a bucket: what most tests begin with
serving     `binlog2s3 serve` of it, and a replica of that
writes      what is written on a source
happened    what a server's binlogs say, by stock mysqlbinlog; a replica that stops there
lost        a bucket whose hosts are lost, and what recoveries from it must give
logins      logging in on both ways

The streamer itself is tests/integration/stream_process.py, a bucket that is read by hand
tests/integration/bucket.py.
"""
