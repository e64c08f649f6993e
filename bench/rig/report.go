package rig

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Report is what a run of the benchmarks found.
type Report struct {
	Machine string   `json:"machine"`
	Quick   bool     `json:"quick"`
	Cells   []*Cell  `json:"cells"`
	Notes   []string `json:"notes,omitempty"`
}

// Cell is one thing that was measured, for all contestants in turns.
type Cell struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Samples by contestant and figure, one value a round; a round's values belong together.
	Samples map[string]map[string][]float64 `json:"samples"`
	Who     []string                        `json:"who"`     // contestants, in the order of the table
	Figures []string                        `json:"figures"` // in the order of the table
	Goals   []Goal                          `json:"goals,omitempty"`
	// Idle is the least part of the machine that was idle before a measurement.
	Idle   float64 `json:"idle"`
	Failed string  `json:"failed,omitempty"`
}

// Goal is what a figure must reach.
type Goal struct {
	Text   string  `json:"text"` // in words, with its bound
	Figure string  `json:"figure"`
	Who    string  `json:"who"`
	Than   string  `json:"than,omitempty"` // the ratio to this one's figure counts; "": the figure itself
	Other  string  `json:"other,omitempty"`
	Bound  float64 `json:"bound"`
	Less   bool    `json:"less"` // at most, not at least
}

// NewCell makes an empty cell.
func NewCell(name, title string, goals ...Goal) *Cell {
	return &Cell{Name: name, Title: title, Goals: goals, Samples: map[string]map[string][]float64{}, Idle: 1}
}

// Add takes down one round of one contestant. Figures that are new get the next column.
func (c *Cell) Add(who string, figures ...Figure) {
	if c.Samples[who] == nil {
		c.Samples[who] = map[string][]float64{}
		c.Who = append(c.Who, who)
	}
	for _, f := range figures {
		if !slices.Contains(c.Figures, f.Name) {
			c.Figures = append(c.Figures, f.Name)
		}
		c.Samples[who][f.Name] = append(c.Samples[who][f.Name], f.Value)
	}
}

// Figure is one number with its name and unit, e.g. "jobs/s".
type Figure struct {
	Name  string
	Value float64
}

// Spread is the middle of some values and how far they went.
type Spread struct{ Median, Least, Most float64 }

// SpreadOf needs one value at least.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (mid + v[len(v)/2-1]) / 2
	}
	return Spread{mid, v[0], v[len(v)-1]}
}

// Judge computes what a goal is about: round by round, so that whatever else the
// machine did weighs on both sides. ok is false without values.
func (c *Cell) Judge(g Goal) (s Spread, met, ok bool) {
	mine := c.Samples[g.Who][g.Figure]
	if g.Than != "" {
		other := g.Other
		if other == "" {
			other = g.Figure
		}
		theirs := c.Samples[g.Than][other]
		var ratios []float64
		for i := range min(len(mine), len(theirs)) {
			if theirs[i] != 0 { // nothing got through there: no ratio
				ratios = append(ratios, mine[i]/theirs[i])
			}
		}
		mine = ratios
	}
	if len(mine) == 0 {
		return s, false, false
	}
	s = SpreadOf(mine)
	met = s.Median >= g.Bound
	if g.Less {
		met = s.Median <= g.Bound
	}
	return s, met, true
}

// JSON writes the report with every value.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Markdown writes the goals, then every cell's medians.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on: %s.\n", r.Machine)
	if r.Quick {
		b.WriteString("\nThis is a quick run: short spans, few rounds; it shows sizes, not digits.\n")
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	b.WriteString("\n### Goals\n\n| what | goal | measured (least–most) | |\n|---|---|---|---|\n")
	for _, c := range r.Cells {
		for _, g := range c.Goals {
			s, met, ok := c.Judge(g)
			switch {
			case !ok:
				fmt.Fprintf(&b, "| %s | %s | not measured | |\n", c.Title, g.Text)
			case met:
				fmt.Fprintf(&b, "| %s | %s | %s | met |\n", c.Title, g.Text, s)
			default:
				fmt.Fprintf(&b, "| %s | %s | %s | **missed** |\n", c.Title, g.Text, s)
			}
		}
	}
	for _, c := range r.Cells {
		c.table(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *Cell) table(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n", c.Title)
	if c.Failed != "" {
		fmt.Fprintf(b, "Not measured to the end: %s\n\n", c.Failed)
	}
	if len(c.Who) == 0 {
		return
	}
	fmt.Fprintf(b, "| | %s |\n|---|%s\n", strings.Join(c.Figures, " | "), strings.Repeat("---|", len(c.Figures)))
	for _, who := range c.Who {
		fmt.Fprintf(b, "| %s |", who)
		for _, f := range c.Figures {
			if v := c.Samples[who][f]; len(v) > 0 {
				fmt.Fprintf(b, " %s |", SpreadOf(v))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	if c.Idle < quietPart {
		fmt.Fprintf(b, "\nThe machine was not quiet: before one of these measurements only %.0f %% of it was idle.\n", c.Idle*100)
	}
}

// quietPart is how much of the machine must be idle for it to count as quiet.
const quietPart = 0.8

// String is the median with the least and the most in brackets.
func (s Spread) String() string {
	if s.Least == s.Most {
		return short(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", short(s.Median), short(s.Least), short(s.Most))
}

// short shows three digits at least, and no fraction from a thousand on.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// Fail notes why a cell was not measured to its end.
func (c *Cell) Fail(err error) *Cell {
	c.Failed = err.Error()
	return c
}

// Order sorts the contestants as names has them.
func (c *Cell) Order(names []string) {
	slices.SortFunc(c.Who, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) })
}
