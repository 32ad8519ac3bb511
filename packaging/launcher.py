#!/usr/lib/binlog2s3/bin/python3 -I
"""Starts binlog2s3 with the interpreter and the libraries that its package brings."""

import os
import sys

# The interpreter is no distribution's own, so it does not know where this one keeps the
# certificate authorities: Debian, Ubuntu; RHEL, Fedora; SUSE; the rest.
AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

if not os.environ.keys() & {"SSL_CERT_FILE", "SSL_CERT_DIR"}:
    for path in AUTHORITIES:
        if os.access(path, os.R_OK):
            os.environ["SSL_CERT_FILE"] = path
            break

from binlog2s3.cli.main import main  # noqa: E402 - behind the variable that it may need

sys.exit(main())
