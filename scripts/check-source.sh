#!/bin/sh
# Fails when a Go file isn't gofmt's, `go fix` would change something, a test waits for
# time to pass, or a shell script has a syntax error.
set -eu
cd "$(dirname "$0")/.."

# Tracked and new files; ignored and deleted ones are left out.
files() {
	git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do
		[ ! -f "$f" ] || echo "$f"
	done
}

bad=0

unformatted=$(files '*.go' | xargs -r gofmt -l)
if [ -n "$unformatted" ]; then
	echo "not formatted; run gofmt -w on:" >&2
	echo "$unformatted" >&2
	bad=1
fi

# go fix exits 1 when there is a difference, and also when a package doesn't compile; what
# it says of modules that it downloads is neither.
if ! fixes=$(go fix -diff ./...) || [ -n "$fixes" ]; then
	echo "go fix -diff ./... is not empty; run go fix ./... :" >&2
	echo "$fixes" >&2
	bad=1
fi

# In a synctest bubble a sleep takes no time and is how the clock moves; anywhere else it
# makes a test slow on a quick machine and false on a slow one.
sleepers=$(files '*_test.go' 'e2e/*.go' '*/storetest/*.go' '*/queuetest/*.go' | xargs -r grep -l 'time\.Sleep(' | xargs -r grep -L '"testing/synctest"')
if [ -n "$sleepers" ]; then
	echo "time.Sleep in tests without synctest; wait for a channel, or poll a condition with a deadline:" >&2
	echo "$sleepers" | xargs grep -n 'time\.Sleep(' /dev/null >&2
	bad=1
fi

for script in $(files '*.sh' .ci/run); do
	case $(head -n 1 "$script") in
	*bash) shell='bash' ;;
	*) shell='sh' ;;
	esac
	"$shell" -n "$script" || bad=1
done

exit $bad
