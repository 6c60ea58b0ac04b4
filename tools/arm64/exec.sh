#!/bin/sh
# exec.sh TEST [ARG]...: runs a test program for arm64 by QEMU, for go test -exec. A script replaces
# the program's file, so that the program can start itself. Tests read FLASHKIT_EMULATOR if they
# start a copy of the program or measure memory, because the emulator needs memory too. C code that
# tests compile is also for arm64.
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
