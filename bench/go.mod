module github.com/lanegate/lanegate/bench

go 1.26.0
