#!/bin/sh
# Looks for known vulnerabilities in functions that the packages call. The arguments are the Go
# package of govulncheck and its options. If the database cannot be reached, the last line says that
# nothing was checked.
set -eu
out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
"${GO:-go}" run "$@" >"$out" 2>&1 || status=$?
cat "$out"
if [ $status != 0 ] && grep -q 'fetching vulnerabilities: ' "$out"; then
	echo "SKIPPED: the database of vulnerabilities cannot be reached from here; nothing was checked"
	exit 0
fi
exit $status
