#!/bin/sh
# Fails when go.mod or go.sum isn't tidy, a module isn't what go.sum says, or
# modernc.org/libc isn't the version that modernc.org/sqlite was made with:
# SQLite's C code is translated against exactly that one.
set -eu
cd "$(dirname "$0")/.."

go mod tidy -diff
go mod verify

want=$(go mod graph | awk '$1 ~ /^modernc\.org\/sqlite@/ && sub(/^modernc\.org\/libc@/, "", $2) {print $2}')
have=$(go list -m -f '{{.Version}}' modernc.org/libc)
if [ "$want" != "$have" ]; then
	echo "check-modules: modernc.org/libc is $have, but modernc.org/sqlite needs exactly $want: find the module that asks for more (go mod graph | grep modernc.org/libc@$have) and use an older version of it" >&2
	exit 1
fi
