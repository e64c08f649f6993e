# date,time,store,receipt,sku,product,quantity,unit_price_cents
NR > 1 && (date == "" || $1 == date) {
	cents = $7 * $8
	rows++
	total += cents
	turnover[$3] += cents
	receipts[$3]++
	brought[$5] += cents
	sold[$5] += $7
	product[$5] = $6
}

END {
	if (!rows) exit 3
	printf "{\"date\":%s,\"receipts\":%d,\"total\":%s,\"stores\":[", (date == "" ? "null" : quote(date)), rows, money(total)
	n = named(turnover, store)
	for (i = 1; i <= n; i++)
		printf "%s{\"store\":%s,\"receipts\":%d,\"total\":%s}", (i > 1 ? "," : ""), quote(store[i]), receipts[store[i]], money(turnover[store[i]])
	printf "],\"top_products\":["
	n = ranked(brought, sku)
	for (i = 1; i <= n && i <= 5; i++)
		printf "%s{\"sku\":%s,\"product\":%s,\"quantity\":%d,\"total\":%s}", (i > 1 ? "," : ""), quote(sku[i]), quote(product[sku[i]]), sold[sku[i]], money(brought[sku[i]])
	print "]}"
}
