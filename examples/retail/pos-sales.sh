#!/bin/sh
# Sales of one day, or of all days: turnover per store and the products that brought most.
# Payload: null, or {"date": "2026-03-04"}.
set -eu
job=pos-sales
here=$(dirname "$0")
. "$here/lib.sh"

read_payload
read_date
input sales.csv
log "adding up ${date:-all days} of $input"
add_up pos-sales.awk "no sales on ${date:-any day}; has the export of that day arrived, and was the shop open?"
