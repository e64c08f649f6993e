# observed_at,station,temp_c,rain_mm,wind_ms; a reading that failed has empty values.
NR > 1 && (date == "" || substr($1, 1, 10) == date) {
	rows++
	stations[$2] = 1
	if ($3 == "") {
		failed[$2]++
		next
	}
	readings[$2]++
	temp[$2] += $3
	rain[$2] += $4
	wind[$2] += $5
}

END {
	if (!rows) exit 3
	printf "{\"date\":%s,\"stations\":[", (date == "" ? "null" : quote(date))
	n = named(stations, name)
	for (i = 1; i <= n; i++) {
		s = name[i]
		printf "%s{\"station\":%s,\"readings\":%d,\"failed\":%d,", (i > 1 ? "," : ""), quote(s), readings[s], failed[s]
		if (readings[s]) printf "\"temp_c\":%.1f,\"rain_mm\":%.1f,\"wind_ms\":%.1f}", temp[s] / readings[s], rain[s], wind[s] / readings[s]
		else printf "\"temp_c\":null,\"rain_mm\":null,\"wind_ms\":null}"
	}
	print "]}"
}
