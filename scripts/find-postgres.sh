#!/bin/sh
# Prints the folder that holds PostgreSQL's server programs, version 14 or newer:
# $LANEGATE_TEST_PG_BIN, else PATH, else the newest below /usr/lib/postgresql.
# Exits 1 and prints nothing when there is none.
set -eu

new_enough() {
	# A postgres without initdb beside it can't make a test database.
	[ -x "$1/postgres" ] && [ -x "$1/initdb" ] || return 1
	major=$("$1/postgres" --version 2>/dev/null | awk '{split($3, v, "."); print v[1] + 0}')
	[ "${major:-0}" -ge 14 ]
}

if [ -n "${LANEGATE_TEST_PG_BIN:-}" ]; then
	new_enough "$LANEGATE_TEST_PG_BIN" || exit 1
	echo "$LANEGATE_TEST_PG_BIN"
	exit 0
fi

in_path=$(command -v postgres || :)
for dir in "${in_path%/*}" $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -t/ -k5 -nr); do
	if [ -n "$dir" ] && new_enough "$dir"; then
		echo "$dir"
		exit 0
	fi
done
exit 1
