#!/bin/sh
# The job that holds everybody up: a forecast of each store's next week, by drawing weeks
# at random out of the days that were sold, for as long as it is told to.
# Payload: null, or {"seconds": 30}. 30 is the default, 172800 (two days) the most.
set -eu
job=heavy
here=$(dirname "$0")
. "$here/lib.sh"

read_payload
seconds=$(field seconds) || exit $?
seconds=${seconds:-30}
case $seconds in
*[!0-9]* | ???????*) die 65 "seconds must be a whole number from 0 to 172800, not \"$seconds\"" ;;
esac
[ "$seconds" -le 172800 ] || die 65 "seconds must be a whole number from 0 to 172800, not \"$seconds\""
input sales.csv

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'log "stopped after $round rounds"; exit 143' TERM INT
: >"$tmp/seen"

# One round of draws a second, so that it is long without taking a whole processor.
# A round's seed is its number: with one awk, equal numbers of rounds give equal forecasts.
start=$(date +%s)
round=0
while :; do
	round=$((round + 1))
	awk -F , -v seed="$round" -f "$here/draw.awk" "$tmp/seen" "$input" >"$tmp/next" ||
		die 1 "there are no sales to draw from"
	mv "$tmp/next" "$tmp/seen"
	gone=$(($(date +%s) - start))
	[ "$gone" -lt "$seconds" ] || break
	[ $((round % 10)) -ne 0 ] || log "$gone of $seconds s, $round rounds"
	sleep 1
done

awk -F , -v rounds="$round" -v seconds="$gone" -f "$here/json.awk" -f "$here/heavy.awk" "$tmp/seen"
