#!/bin/sh
# Fails when a file of the repository names a path of somebody's machine or a
# package registry's host: both belong to an environment, not to the project.
# Also refuses lock files with download addresses, for the same reason.
set -eu
cd "$(dirname "$0")/.."

bad=0

# search PATTERN SENTENCE: no line of a text file may match. This file has the patterns.
search() {
	if hits=$(git grep -nIE --untracked -e "$1" -- . ':!scripts/check-tracked.sh' ':!LICENSE'); then
		printf 'check-tracked: %s\n%s\n' "$2" "$hits" | cut -c1-200 >&2
		bad=1
	fi
}

search '(^|[^A-Za-z0-9_./-])/(root|work|workspace|farm|Users|tmp/bash_jobs)(/|$)' "a path of one machine"
search '(^|[^A-Za-z0-9_.-])(registry|proxy|mirrors?|sum|deb|security|ftp|files|index)\.[a-z0-9-]+\.(org|com|net|io|dev)([^A-Za-z0-9_.-]|$)' "the host of a package registry"
search '^ *"resolved": "[a-z]+://' "a download address in a lock file; make it again with npm install --package-lock-only --omit-lockfile-registry-resolved"

exit $bad
