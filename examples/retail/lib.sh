# Sourced by the example jobs; expects $job, the job's name, and $here, this folder.
#
# A job reads its payload (JSON) from standard input, prints its result (JSON) on standard
# output and what a person may want to know on standard error. It exits with
#
#   0   done
#   1   the input is there, but has nothing for the day asked for
#   65  the payload is not one that this job understands
#   70  a fault of the job's own
#   75  the input isn't there yet: come back later (lanegate defers the job, it does not fail)

# Decimal points and sort order must not depend on who runs this.
LC_ALL=C
export LC_ALL

log() { echo "$job: $*" >&2; }

die() {
	status=$1
	shift
	log "$*"
	exit "$status"
}

# input NAME sets $input to the path of a data file. RETAIL_DATA names another folder.
input() {
	input=${RETAIL_DATA:-$here/data}/$1
	[ -r "$input" ] || die 75 "$input is not there yet"
}

# read_payload keeps standard input; no input at all is the same as null.
read_payload() { payload=$(cat); }

# field NAME prints a member of the payload, or nothing when it is absent or null.
field() {
	printf '%s\n' "${payload:-null}" | awk -v key="$1" -f "$here/payload.awk" ||
		die 65 "the payload must be a JSON object or null, e.g. {\"date\": \"2026-03-04\"}"
}

# read_date sets $date from the payload: a day, or empty for all days.
read_date() {
	date=$(field date) || exit $?
	case $date in
	'' | [0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]) ;;
	*) die 65 "date must be a day such as \"2026-03-04\", not \"$date\"" ;;
	esac
}

# add_up PROGRAM MESSAGE runs an awk program over $input for $date. The programs exit with 3
# when there is nothing to add up; MESSAGE says so.
add_up() {
	awk -F , -v date="$date" -f "$here/json.awk" -f "$here/$1" "$input" && return
	[ $? -eq 3 ] || die 70 "$1 failed (awk's message is above)"
	die 1 "$2"
}
