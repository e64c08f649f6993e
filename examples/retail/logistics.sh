#!/bin/sh
# Shipments per carrier that came late, or that should be there by now and aren't.
# Payload: null, or {"date": "2026-03-06"} for those promised for that day.
# Without a date "now" is the newest day in the file.
set -eu
job=logistics
here=$(dirname "$0")
. "$here/lib.sh"

read_payload
read_date
input shipments.csv
log "checking ${date:-all days} of $input"
add_up logistics.awk "no shipment was promised for ${date:-any day}"
