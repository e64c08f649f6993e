# shipment,carrier,origin,destination,pallets,shipped_on,promised_on,delivered_on
# Days are ISO dates, so they compare as text.
NR > 1 {
	if ($6 > newest) newest = $6
	if ($8 > newest) newest = $8
}

NR > 1 && (date == "" || $7 == date) {
	rows++
	id[rows] = $1
	carrier[rows] = $2
	promised[rows] = $7
	delivered[rows] = $8
}

END {
	if (!rows) exit 3
	for (r = 1; r <= rows; r++) {
		c = carrier[r]
		shipments[c]++
		if (delivered[r] == "" && promised[r] < newest) {
			overdue[c]++
			missing = missing (missing == "" ? "" : ",") quote(id[r])
		} else if (delivered[r] > promised[r]) {
			late[c]++
			total_late++
		}
	}
	printf "{\"date\":%s,\"as_of\":%s,\"shipments\":%d,\"late\":%d,\"carriers\":[", (date == "" ? "null" : quote(date)), quote(newest), rows, total_late
	n = named(shipments, name)
	for (i = 1; i <= n; i++) {
		c = name[i]
		printf "%s{\"carrier\":%s,\"shipments\":%d,\"late\":%d,\"overdue\":%d,\"late_percent\":%.1f}", (i > 1 ? "," : ""), quote(c), shipments[c], late[c], overdue[c], 100 * (late[c] + overdue[c]) / shipments[c]
	}
	print "],\"overdue\":[" missing "]}"
}
