#!/bin/sh
# Fails when the committed generated files are stale. Generates into a copy of the
# tree, so that neither a dirty checkout nor a failure leaves anything changed.
set -eu
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

git ls-files --cached --others --exclude-standard | while read -r f; do
	[ ! -f "$f" ] || echo "$f"
done >"$copy/.files"
mkdir "$copy/tree"
tar -cf - -T "$copy/.files" | tar -xf - -C "$copy/tree"

if ! (cd "$copy/tree" && go generate ./...) >"$copy/.log" 2>&1; then
	cat "$copy/.log" >&2
	echo "check-generated: go generate ./... failed" >&2
	exit 1
fi

(cd "$copy/tree" && find . -type f) | sed 's|^\./||' | sort >"$copy/.after"
sort "$copy/.files" >"$copy/.before"

{
	comm -13 "$copy/.before" "$copy/.after"
	while read -r f; do
		cmp -s "$f" "$copy/tree/$f" || echo "$f"
	done <"$copy/.before"
} >"$copy/.stale"

if [ -s "$copy/.stale" ]; then
	while read -r f; do
		diff -u "$f" "$copy/tree/$f" 2>&1 | head -n 40 >&2 || :
	done <"$copy/.stale"
	echo "check-generated: these files are stale; run make generate and commit:" >&2
	cat "$copy/.stale" >&2
	exit 1
fi
