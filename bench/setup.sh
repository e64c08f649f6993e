#!/bin/sh
# Installs what the benchmarks need and this machine lacks: redis-server and
# PostgreSQL's server programs, by apt. Says nothing when nothing is missing.
set -eu
cd "$(dirname "$0")/.."

say() { echo "bench/setup: $*" >&2; }
die() {
	say "$*"
	exit 1
}

wanted=""
command -v redis-server >/dev/null || wanted="$wanted redis-server"
scripts/find-postgres.sh >/dev/null || wanted="$wanted postgresql"
[ -n "$wanted" ] || exit 0

command -v apt-get >/dev/null || die "missing:$wanted, and there is no apt-get here: install them yourself, then run this again"
if [ "$(id -u)" -eq 0 ]; then
	as_root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
	as_root="sudo -n"
else
	die "installing$wanted needs root, or sudo without a password. Run this once as root: apt-get install -y$wanted"
fi
say "apt-get install$wanted"
log=$(mktemp)
$as_root apt-get update -qq >"$log" 2>&1 || say "apt-get update failed; trying with the lists at hand"
# shellcheck disable=SC2086 # a list of words
if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted >>"$log" 2>&1; then
	tail -n 20 "$log" >&2
	rm -f "$log"
	die "apt-get could not install$wanted"
fi
rm -f "$log"
command -v redis-server >/dev/null || die "redis-server is still missing; put it into PATH"
scripts/find-postgres.sh >/dev/null || die "no PostgreSQL of version 14 or newer; set LANEGATE_TEST_PG_BIN to the folder of one"
