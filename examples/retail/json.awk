# Functions for writing results.

# quote returns a string as JSON. The data files hold no control characters.
function quote(s) {
	gsub(/\\/, "\\\\", s)
	gsub(/"/, "\\\"", s)
	return "\"" s "\""
}

# money writes cents as an amount with two decimals.
function money(cents) { return sprintf("%.2f", cents / 100) }

# ranked fills order[1..n] with the keys of weight, the heaviest first and equal ones by
# name, and returns n. An array's own order differs between implementations of awk.
function ranked(weight, order, key, n, i) {
	for (key in weight) {
		for (i = n++; i > 0 && before(key, order[i], weight); i--) order[i + 1] = order[i]
		order[i + 1] = key
	}
	return n + 0
}

function before(a, b, weight) {
	if (weight[a] != weight[b]) return weight[a] > weight[b]
	return a < b
}

# named fills order[1..n] with the keys of set by name and returns n.
function named(set, order, key, n, i) {
	for (key in set) {
		for (i = n++; i > 0 && key < order[i]; i--) order[i + 1] = order[i]
		order[i + 1] = key
	}
	return n + 0
}
