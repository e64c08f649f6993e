// Command vulngate reads `govulncheck -format json` from standard input, prints each
// finding on one line, and exits 1 when one of them is ours to mend: a vulnerable symbol
// that the code really calls, in a module of go.mod. What the standard library brings is
// printed only: a newer Go release mends it, not a change in this repository.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
)

// stdlib is govulncheck's name for the standard library as a module.
const stdlib = "stdlib"

// message is the part of govulncheck's stream that matters here.
type message struct {
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string  `json:"osv"`
		FixedVersion string  `json:"fixed_version"`
		Trace        []frame `json:"trace"` // the vulnerable symbol first, its callers after it
	} `json:"finding"`
}

// frame is one place of a trace; Function is empty when only an import is known.
type frame struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Package  string `json:"package"`
	Function string `json:"function"`
}

// finding is one vulnerability in one module, at its strongest: called beats imported.
type finding struct {
	id, fixed string
	at        frame
}

func main() {
	findings, summaries, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulngate:", err)
		os.Exit(2)
	}
	if report(os.Stdout, findings, summaries) > 0 {
		os.Exit(1)
	}
}

// read returns the findings by id and module, and the summaries by id. A stream
// without any message is an error: govulncheck failed, and silence isn't safety.
func read(r io.Reader) (map[string]finding, map[string]string, error) {
	findings, summaries := map[string]finding{}, map[string]string{}
	messages := 0
	for dec := json.NewDecoder(r); ; messages++ {
		var m message
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("read govulncheck's output: %w", err)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 {
			key := f.OSV + " " + f.Trace[0].Module
			if old, ok := findings[key]; !ok || old.at.Function == "" {
				findings[key] = finding{f.OSV, f.FixedVersion, f.Trace[0]}
			}
		}
	}
	if messages == 0 {
		return nil, nil, errors.New("govulncheck printed nothing")
	}
	return findings, summaries, nil
}

// report prints the findings in a fixed order and returns how many are ours to mend.
func report(w io.Writer, findings map[string]finding, summaries map[string]string) int {
	keys := make([]string, 0, len(findings))
	for k := range findings {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	ours := 0
	for _, k := range keys {
		f := findings[k]
		verdict := "not called"
		switch {
		case f.at.Function != "" && f.at.Module == stdlib:
			verdict = "called; wants a newer Go"
		case f.at.Function != "":
			verdict = "CALLED"
			ours++
		}
		fixed := f.fixed
		if fixed == "" {
			fixed = "no release"
		}
		fmt.Fprintf(w, "%s %s %s@%s (fixed in %s): %s\n", verdict, f.id, f.at.Module, f.at.Version, fixed, summaries[f.id])
	}
	fmt.Fprintf(w, "vulnerabilities: %d findings, %d to mend here\n", len(keys), ours)
	return ours
}
