#!/bin/sh
# exec.sh TEST [ARG]...: run a test program for arm64 by QEMU, as go test -exec does. A script
# takes its place, so that it can start itself. Tests read FLASHKIT_EMULATOR where they start
# a copy, and where an emulator's own memory would count; what they compile is for arm64, too.
set -e
emulator="qemu-aarch64-static -L /usr/aarch64-linux-gnu" # where the loader and the C library are
test=$1
shift
mv "$test" "$test.arm64"
cat >"$test" <<END
#!/bin/sh
exec $emulator -0 "\$0" "$test.arm64" "\$@"
END
chmod +x "$test"
CC=${CC:-aarch64-linux-gnu-gcc} FLASHKIT_EMULATOR=$emulator exec "$test" "$@"
