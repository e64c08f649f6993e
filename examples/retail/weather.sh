#!/bin/sh
# Averages per weather station and how much it rained there, for the forecast of what sells.
# Payload: null, or {"date": "2026-03-04"}.
set -eu
job=weather
here=$(dirname "$0")
. "$here/lib.sh"

read_payload
read_date
input weather.csv
log "averaging ${date:-all days} of $input"
add_up weather.awk "no reading on ${date:-any day}"
