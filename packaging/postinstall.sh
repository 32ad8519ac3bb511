#!/bin/sh
# Behind an installation or an upgrade, of the Debian package and of the RPM.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    # those that run go on with the new version: from where they were, within seconds
    systemctl try-restart binlog2s3.service 'binlog2s3@*.service' 'binlog2s3-serve@*.service' || :
fi
exit 0
