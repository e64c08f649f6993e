#!/bin/sh
# Makes a vulnerability database that govulncheck can read without a network, out of
# the golang.org/x/vulndb module at the version of tools/vuln/go.mod.
#
#   scripts/make-vulndb.sh FOLDER
set -eu
cd "$(dirname "$0")/.."

mkdir -p "$1"
out=$(cd "$1" && pwd)
indexdb="$out.indexdb"
go -C tools/vuln build -trimpath -o "$indexdb" golang.org/x/vulndb/cmd/indexdb
"$indexdb" -out "$out" -vulns "$(go -C tools/vuln list -m -f '{{.Dir}}' golang.org/x/vulndb)/data/osv"
rm -f "$indexdb"
