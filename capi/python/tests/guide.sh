#!/bin/sh
# guide.sh ROOT PYTHON VENV runs the commands of docs/bindings.md, section Python, and the code that needs no PyTorch. PYTHON makes the
# environment in the folder VENV. Variables that could affect the package are unset, and PATH has no compiler.
set -eu
root=$1 python=$2 venv=$3 page=docs/bindings.md
unset FLASHKIT_LIBRARY FLASHKIT_BACKEND FLASHKIT_PROFILE PYTHONPATH PYTHONHOME LD_LIBRARY_PATH
awk '/^## / {python = /^## Python$/} /^##/ {install = python && /Install/} install && sub(/^    /, "")' "$root/$page" | {
	ran=0
	cd "$root"
	while read -r line; do
		case $line in
		make\ *) /bin/sh -c "$line" </dev/null ;;
		pip\ *)
			rm -rf "$venv" && "$python" -m venv "$venv"
			PATH=$venv/bin CC=/nonexistent /bin/sh -c "$line --quiet --disable-pip-version-check --only-binary :all:" </dev/null
			;;
		*) echo "$page: '$line' is not a command that this test runs" >&2 && exit 1 ;;
		esac
		ran=$((ran + 1))
	done
	[ "$ran" -ge 2 ] || { echo "$page installs nothing" >&2 && exit 1; }
}
cd "$venv" && PATH=$venv/bin bin/python "$root/capi/python/tests/installed.py" "$root/$page"
