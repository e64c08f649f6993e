# One round of draws. Reads what was seen so far (store,turnover in steps of 10,count)
# and the sales, and prints the first of these with 50 more weeks per store counted in.
# A week is six trading days, each drawn out of the store's own.
FILENAME == ARGV[1] { seen[$1 "," $2] = $3; next }

FNR > 1 {
	if (!(($3, $1) in day)) {
		if (!($3 in days)) store[++stores] = $3
		last[$3, ++days[$3]] = $1
	}
	day[$3, $1] += $7 * $8
}

END {
	if (!stores) exit 3
	srand(seed)
	for (i = 1; i <= stores; i++) {
		s = store[i]
		for (draw = 0; draw < 50; draw++) {
			week = 0
			for (d = 0; d < 6; d++) week += day[s, last[s, int(rand() * days[s]) + 1]]
			seen[s "," int(week / 1000)]++
		}
	}
	for (key in seen) print key "," seen[key] | "sort -t , -k 1,1 -k 2,2n"
}
