#!/bin/sh
# Runs the micro-benchmarks here and at another commit, in turns, and compares them.
#
#   scripts/benchstat.sh BENCHSTAT [REF [GO-TEST-ARGUMENT…]]
#
# REF is HEAD unless given: what is not committed yet against what is.
set -eu
stat=$1
ref=${2:-HEAD}
[ $# -lt 2 ] && shift || shift 2
cd "$(dirname "$0")/.."

case $stat in /*) ;; *) stat=$PWD/$stat ;; esac
here=$PWD
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/base" 2>/dev/null || :; rm -rf "$dir"' EXIT INT TERM
git worktree add --quiet --detach "$dir/base" "$ref"

[ $# -gt 0 ] || set -- -bench '^Benchmark(Plan|DecodeSubmit|Submit|Admit|Forecast)$' ./admission ./api ./store ./runlog
one() {
	go test -run '^$' -benchmem -benchtime 200ms -count 1 -timeout 30m "$@"
}
# In turns, so that whatever else the machine does weighs on both.
for round in 1 2 3 4 5 6; do
	echo "benchstat: round $round of 6" >&2
	(cd "$dir/base" && one "$@") >>"$dir/base.txt"
	(cd "$here" && one "$@") >>"$dir/here.txt"
done
"$stat" "$ref=$dir/base.txt" "here=$dir/here.txt"
