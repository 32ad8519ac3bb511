#!/bin/sh
# carry.sh FLAVOUR PROGRAM... : copy programs with everything they need to /carried/opt/FLAVOUR.
#
# They bring their own libraries, libc and its loader, so they run on whatever image they are put
# into, of any release, and both flavours side by side. Client plugins (old and special ways to log
# in) stay at the paths where the programs look for them.
set -eu
flavour=$1
shift
to=/carried/opt/$flavour
mkdir -p "$to/bin" "$to/lib"

# needed FILE... : the paths of all libraries, the loader among them
needed() {
    ldd "$@" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' | sort -u
}

for name in "$@"; do
    cp -L "/usr/bin/$name" "$to/bin/$name"
done
plugins=$(find /usr/lib -type f \( -path '*/libmariadb3/plugin/*.so' \
    -o -path '*/mysql/plugin/authentication_*_client.so' -o -name mysql_native_password.so \))
for file in $plugins; do
    mkdir -p "/carried$(dirname "$file")"
    cp "$file" "/carried$file"
done

# shellcheck disable=SC2046,SC2086 # these are lists of paths without blanks
for file in $(needed $(for name in "$@"; do echo "/usr/bin/$name"; done) $plugins); do
    cp -L "$file" "$to/lib/"
done
loader=$(basename "$(ls "$to"/lib/ld-linux*)")
for name in "$@"; do
    patchelf --set-interpreter "/opt/$flavour/lib/$loader" \
        --force-rpath --set-rpath "/opt/$flavour/lib" "$to/bin/$name"
done
for file in $plugins; do
    patchelf --force-rpath --set-rpath "/opt/$flavour/lib" "/carried$file"
done

# where they will be, with nothing else around that could help them out
mv /carried/opt/"$flavour" /opt/"$flavour"
for name in "$@"; do
    "/opt/$flavour/bin/$name" --no-defaults --version
done
mv /opt/"$flavour" /carried/opt/"$flavour"
