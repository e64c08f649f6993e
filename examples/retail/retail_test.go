// Package retail_test runs the example jobs as lanegate does and compares their results
// with what Go makes of the same files.
package retail_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// run starts one job with a payload and returns its exit code and both outputs.
func run(t *testing.T, job, payload string, env ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", job+".sh")
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(payload)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return code, out.String(), errs.String()
}

// result runs a job that must succeed and decodes what it printed.
func result[T any](t *testing.T, job, payload string) T {
	t.Helper()
	code, stdout, stderr := run(t, job, payload)
	if code != 0 {
		t.Fatalf("exit code %d, stderr:\n%s", code, stderr)
	}
	var v T
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatalf("the result isn't JSON: %v\n%s", err, stdout)
	}
	return v
}

// rows returns a data file without its header.
func rows(t *testing.T, name string) [][]string {
	t.Helper()
	f, err := os.Open("data/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all[1:]
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

type sales struct {
	Date     *string     `json:"date"`
	Receipts int         `json:"receipts"`
	Total    json.Number `json:"total"`
	Stores   []struct {
		Store string      `json:"store"`
		Total json.Number `json:"total"`
	} `json:"stores"`
	TopProducts []struct {
		SKU   string      `json:"sku"`
		Total json.Number `json:"total"`
	} `json:"top_products"`
}

func TestPosSalesAddsUp(t *testing.T) {
	for _, date := range []string{"", "2026-03-04", "2026-03-07"} {
		t.Run("date "+date, func(t *testing.T) {
			payload := "null"
			if date != "" {
				payload = `{"date": "` + date + `"}`
			}
			got := result[sales](t, "pos-sales", payload)

			receipts, stores, products := 0, map[string]float64{}, map[string]float64{}
			for _, r := range rows(t, "sales.csv") {
				if date == "" || r[0] == date {
					cents := number(t, r[6]) * number(t, r[7])
					receipts++
					stores[r[2]] += cents
					products[r[4]] += cents
				}
			}
			if got.Receipts != receipts {
				t.Errorf("receipts = %d, want %d", got.Receipts, receipts)
			}
			gotStores := map[string]float64{}
			for _, s := range got.Stores {
				gotStores[s.Store] = number(t, strings.Replace(s.Total.String(), ".", "", 1))
			}
			if diff := cmp.Diff(stores, gotStores); diff != "" {
				t.Errorf("stores, in cents (-want +got):\n%s", diff)
			}
			best := slices.Sorted(maps.Values(products))
			slices.Reverse(best)
			var top []float64
			for _, p := range got.TopProducts {
				top = append(top, number(t, strings.Replace(p.Total.String(), ".", "", 1)))
			}
			if diff := cmp.Diff(best[:5], top); diff != "" {
				t.Errorf("top products, in cents (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLogisticsFindsLateShipments(t *testing.T) {
	type carrier struct {
		Carrier                  string `json:"carrier"`
		Shipments, Late, Overdue int
	}
	got := result[struct {
		Carriers []carrier `json:"carriers"`
		Overdue  []string  `json:"overdue"`
	}](t, "logistics", "null")

	all := rows(t, "shipments.csv")
	newest := ""
	for _, r := range all {
		newest = max(newest, r[5], r[7])
	}
	want := map[string]carrier{}
	var overdue []string
	for _, r := range all {
		c := want[r[1]]
		c.Carrier = r[1]
		c.Shipments++
		switch promised, delivered := r[6], r[7]; {
		case delivered == "" && promised < newest:
			c.Overdue++
			overdue = append(overdue, r[0])
		case delivered > promised:
			c.Late++
		}
		want[r[1]] = c
	}
	gotCarriers := map[string]carrier{}
	for _, c := range got.Carriers {
		gotCarriers[c.Carrier] = c
	}
	if diff := cmp.Diff(want, gotCarriers); diff != "" {
		t.Errorf("carriers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(overdue, got.Overdue); diff != "" {
		t.Errorf("overdue (-want +got):\n%s", diff)
	}
}

func TestWeatherLeavesFailedReadingsOut(t *testing.T) {
	got := result[struct {
		Stations []struct {
			Station          string
			Readings, Failed int
			TempC            float64 `json:"temp_c"`
		}
	}](t, "weather", `{"date":"2026-03-05"}`)

	for _, s := range got.Stations {
		readings, failed, sum := 0, 0, 0.0
		for _, r := range rows(t, "weather.csv") {
			switch {
			case r[1] != s.Station || !strings.HasPrefix(r[0], "2026-03-05T"):
			case r[2] == "":
				failed++
			default:
				readings++
				sum += number(t, r[2])
			}
		}
		if s.Readings != readings || s.Failed != failed {
			t.Errorf("%s: %d readings, %d failed; want %d, %d", s.Station, s.Readings, s.Failed, readings, failed)
		}
		if mean := sum / float64(readings); s.TempC < mean-0.051 || s.TempC > mean+0.051 {
			t.Errorf("%s: temp_c = %v, want %.2f", s.Station, s.TempC, mean)
		}
	}
	if len(got.Stations) != 5 {
		t.Errorf("%d stations, want 5", len(got.Stations))
	}
}

func TestHeavyForecastsEveryStore(t *testing.T) {
	got := result[struct {
		Rounds   int `json:"rounds"`
		Forecast []struct {
			Store          string
			Mean, P10, P90 float64
		} `json:"forecast"`
	}](t, "heavy", `{"seconds": 0}`)

	if got.Rounds != 1 || len(got.Forecast) != 5 {
		t.Fatalf("%d rounds, %d stores; want 1, 5", got.Rounds, len(got.Forecast))
	}
	for _, f := range got.Forecast {
		if f.P10 <= 0 || f.P10 > f.Mean || f.Mean > f.P90+10 {
			t.Errorf("%s: p10 %v, mean %v, p90 %v are out of order", f.Store, f.P10, f.Mean, f.P90)
		}
	}
}

func TestJobsSayWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name, job, payload string
		env                []string
		code               int
		says               string
	}{
		{"a day without sales fails", "pos-sales", `{"date":"2026-03-08"}`, nil, 1, "no sales on 2026-03-08"},
		{"input that isn't there yet defers", "logistics", `null`, []string{"RETAIL_DATA=/nonexistent"}, 75, "not there yet"},
		{"a number is no payload", "weather", `5`, nil, 65, "must be a JSON object or null"},
		{"broken JSON", "weather", `{"date":`, nil, 65, "must be a JSON object or null"},
		{"something after the payload", "weather", `{} {}`, nil, 65, "must be a JSON object or null"},
		{"a date that is none", "pos-sales", `{"date":"today"}`, nil, 65, `not "today"`},
		{"a date inside another member is not the date", "pos-sales", `{"x":[{"date":"today"}],"y":"\"date\":1"}`, nil, 0, "all days"},
		{"no payload at all is null", "pos-sales", ``, nil, 0, "all days"},
		{"seconds that are no number", "heavy", `{"seconds":"long"}`, nil, 65, "whole number"},
		{"seconds beyond two days", "heavy", `{"seconds":172801}`, nil, 65, "172800"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := run(t, tt.job, tt.payload, tt.env...)
			if code != tt.code || !strings.Contains(stderr, tt.says) {
				t.Errorf("exit code %d, want %d; stderr must say %q:\n%s", code, tt.code, tt.says, stderr)
			}
			if code != 0 && stdout != "" {
				t.Errorf("a job that failed printed a result: %s", stdout)
			}
		})
	}
}
