#!/bin/sh
# Shows that the import rules of .golangci.yml bite: plants a forbidden import into
# every package of a copy of the tree, and fails unless the linter names each one.
# A rule whose file pattern matches nothing would otherwise pass for ever.
#
#   scripts/check-import-rules.sh PATH_OF_GOLANGCI_LINT
set -eu
cd "$(dirname "$0")/.."

linter=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

git ls-files --cached --others --exclude-standard | while read -r f; do
	[ ! -f "$f" ] || echo "$f"
done | tar -cf - -T - | tar -xf - -C "$copy"
cd "$copy"

# FOLDER IMPORT: one import that points sideways or at somebody else's library. All together
# they close no cycle: those the compiler refuses, and then the linter sees nothing at all.
module=github.com/lanegate/lanegate
plants="
. net/http
admission os
admission $module/migrations
runlog database/sql
runlog $module/openapi
e2e/history os
verification os
verification $module/admission
service net/http
service $module/migrations
migrations $module
store net/http
store $module/openapi
queue $module/migrations
queue github.com/lib/pq
worker $module/openapi
worker github.com/jmoiron/sqlx
worker/runner $module/admission
worker/guard fmt
api $module/migrations
api github.com/jmoiron/sqlx
web $module/openapi
openapi github.com/getkin/kin-openapi/openapi3
openapi/gen github.com/jmoiron/sqlx
app $module/migrations
app github.com/jmoiron/sqlx
cmd/lanegate github.com/jmoiron/sqlx
"

n=0
echo "$plants" >plants
while read -r dir import; do
	case $import in
	"$module"/*) [ -d "${import#"$module"/}" ] || continue ;;
	esac
	name=
	for sibling in "$dir"/*.go; do
		case $sibling in
		*_test.go | "$dir/*.go") ;;
		*) name=$(awk '$1 == "package" {print $2; exit}' "$sibling") ;;
		esac
	done
	[ -n "$name" ] || continue
	n=$((n + 1))
	printf 'package %s\n\nimport _ "%s"\n' "$name" "$import" >"$dir/planted_$n.go"
	echo "$dir/planted_$n.go $import" >>planted
done <plants

"$linter" run --enable-only depguard --allow-parallel-runners --show-stats=false ./... >found 2>errors || :

bad=0
while read -r file import; do
	if ! grep -F "${file#./}:" found | grep -qF "import '$import' is not allowed"; then
		echo "check-import-rules: nothing stops ${file%/*} from importing $import" >&2
		bad=1
	fi
done <planted
[ $bad -eq 0 ] || cat errors found >&2
exit $bad
