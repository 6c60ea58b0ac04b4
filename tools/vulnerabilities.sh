#!/bin/sh
# Looks for known vulnerabilities in what the packages call: a package of govulncheck, and
# its options. Where the database cannot be reached, nothing is checked, and the last line says so.
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
