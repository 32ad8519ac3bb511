#!/bin/sh
# Before a removal: dpkg says "remove", rpm how many versions will be left. Not before an upgrade.
set -e
case "$1" in
    remove | 0) ;;
    *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
    systemctl stop binlog2s3.service 'binlog2s3@*.service' 'binlog2s3-serve@*.service' \
        'binlog2s3-drill@*.timer' 'binlog2s3-drill@*.service' \
        'binlog2s3-backup@*.timer' 'binlog2s3-backup@*.service' \
        'binlog2s3-prune@*.timer' 'binlog2s3-prune@*.service' || :
    for link in /etc/systemd/system/*.wants/binlog2s3.service \
        /etc/systemd/system/*.wants/binlog2s3@*.service \
        /etc/systemd/system/*.wants/binlog2s3-serve@*.service \
        /etc/systemd/system/*.wants/binlog2s3-drill@*.timer \
        /etc/systemd/system/*.wants/binlog2s3-backup@*.timer \
        /etc/systemd/system/*.wants/binlog2s3-prune@*.timer; do
        if [ -L "$link" ]; then systemctl disable "${link##*/}" || :; fi
    done
fi
exit 0
