# store,turnover in steps of 10,count: ordered by store, then by turnover.
{
	if (!($1 in draws)) store[++stores] = $1
	n = ++steps[$1]
	step[$1, n] = $2
	count[$1, n] = $3
	draws[$1] += $3
	sum[$1] += ($2 * 10 + 5) * $3
}

# quantile returns the turnover below which the share q of the weeks drawn for s lies.
function quantile(s, q, i, below) {
	for (i = 1; i < steps[s]; i++) {
		below += count[s, i]
		if (below >= q * draws[s]) break
	}
	return step[s, i] * 10
}

END {
	printf "{\"rounds\":%d,\"seconds\":%d,\"weeks_drawn\":%d,\"forecast\":[", rounds, seconds, rounds * 50
	for (i = 1; i <= stores; i++) {
		s = store[i]
		printf "%s{\"store\":%s,\"mean\":%.0f,\"p10\":%d,\"p90\":%d}", (i > 1 ? "," : ""), quote(s), sum[s] / draws[s], quantile(s, 0.1), quantile(s, 0.9)
	}
	print "]}"
}
