# Prints the member `key` of the JSON object on standard input when it is a string, a
# number or a boolean; prints nothing when it is absent or null, or when the whole
# payload is null. Exits 1 on anything else. Just enough of a parser for flat payloads
# on machines without jq; nested values are checked and skipped.

{ text = text $0 "\n" }

END {
	pos = 1
	space()
	if (substr(text, pos, 1) == "{") object(1)
	else if (value() != "null") fail()
	space()
	if (pos <= length(text)) fail()
	if (found && kind != "null") print result
}

function fail() { exit 1 }

function space() {
	while (substr(text, pos, 1) ~ /[ \t\r\n]/) pos++
}

function expect(c) {
	space()
	if (substr(text, pos, 1) != c) fail()
	pos++
}

# object and array leave pos behind their closing bracket. Only the outermost object
# (top = 1) is searched; of members with the same name the last one counts.
function object(top, name, type, at_end) {
	expect("{")
	space()
	if (substr(text, pos, 1) == "}") { pos++; return }
	for (at_end = 0; !at_end; ) {
		space()
		name = string()
		expect(":")
		space()
		type = value()
		if (top && name == key) {
			if (type == "nested") fail()
			found = 1; kind = type; result = scalar
		}
		space()
		at_end = substr(text, pos, 1) != ","
		if (!at_end) pos++
	}
	expect("}")
}

function array(at_end) {
	expect("[")
	space()
	if (substr(text, pos, 1) == "]") { pos++; return }
	for (at_end = 0; !at_end; ) {
		space()
		value()
		space()
		at_end = substr(text, pos, 1) != ","
		if (!at_end) pos++
	}
	expect("]")
}

# value reads one value, leaves a scalar's text in `scalar` and returns its kind.
function value(c, rest) {
	c = substr(text, pos, 1)
	if (c == "{") { object(0); return "nested" }
	if (c == "[") { array(); return "nested" }
	if (c == "\"") { scalar = string(); return "string" }
	rest = substr(text, pos, 400)
	if (match(rest, /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/)) c = "number"
	else if (match(rest, /^null/)) c = "null"
	else if (match(rest, /^(true|false)/)) c = "boolean"
	else fail()
	scalar = substr(rest, 1, RLENGTH)
	pos += RLENGTH
	return c
}

# string returns the text between quotes. Escapes stay as they are written, but for \" \\ \/.
function string(c, out) {
	expect("\"")
	for (out = ""; (c = substr(text, pos, 1)) != "\""; pos++) {
		if (c == "" || c == "\n") fail()
		if (c == "\\") {
			c = substr(text, ++pos, 1)
			if (index("\"\\/", c) == 0 || c == "") c = "\\" c
		}
		out = out c
	}
	pos++
	return out
}
