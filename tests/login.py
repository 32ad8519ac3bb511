"""A login as root, of a server to be named: tests take it with `dataclasses.replace`."""

from binlog2s3.server.login import Login

ROOT = Login(
    host="127.0.0.1",
    port=0,
    socket=None,
    user="root",
    password="",
    ssl_mode="PREFERRED",
    ssl_ca=None,
    ssl_cert=None,
    ssl_key=None,
    connect_timeout=60.0,
)
