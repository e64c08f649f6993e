package runlog

import (
	"cmp"
	"math"
	"slices"
)

// maxMatrix bounds the rows and columns of the matrix; the rest stands together.
const maxMatrix = 8

// matrixView is who blocks whom: one row per blocker, the worst first, and one
// column per victim.
type matrixView struct {
	Victims []string
	Rows    []matrixRow
	Total   float64
	// Others: the last column is all other victims.
	Others bool
	// Cut: the report lists only the largest pairs, so that an empty cell may stand
	// for a small one.
	Cut bool
}

type matrixRow struct {
	Blocker string
	Cells   []matrixCell
	// Harm is what others waited.
	Harm  float64
	Share float64
}

// matrixCell is hours waited. Heat is from 0 to 100, by the square root of the
// part of the largest cell, so that a tenth of it still shows.
type matrixCell struct {
	Hours, Share float64
	Heat         int
	Own          bool
}

// newMatrixView is nil when nobody waits.
func newMatrixView(r *Report) *matrixView {
	if len(r.Blame) == 0 || len(r.Layouts) == 0 {
		return nil
	}
	m := &matrixView{Total: r.Layouts[0].Waits.Hours, Cut: len(r.Blame) >= maxPairs}
	victims := slices.Clone(r.Layouts[0].Classes)
	slices.SortStableFunc(victims, func(a, b ClassWaits) int { return cmp.Compare(b.Hours, a.Hours) })
	victims = slices.DeleteFunc(victims, func(c ClassWaits) bool { return c.Hours <= 0 })
	m.Others = len(victims) > maxMatrix
	victims = victims[:min(maxMatrix, len(victims))]
	index := map[string]int{}
	for i, v := range victims {
		index[v.Class] = i
		m.Victims = append(m.Victims, visible(v.Class))
	}
	for _, b := range r.Blockers[:min(maxMatrix, len(r.Blockers))] {
		m.Rows = append(m.Rows, m.row(r, b, index))
	}
	if len(r.Blockers) > maxMatrix {
		m.Rows = append(m.Rows, m.rest(r.Blockers[maxMatrix:], victims))
	}
	m.heat()
	return m
}

func (m *matrixView) row(r *Report, b Blocker, index map[string]int) matrixRow {
	row := matrixRow{Blocker: visible(b.Class), Harm: b.Harm, Share: b.Share, Cells: make([]matrixCell, len(m.Victims), len(m.Victims)+1)}
	rest := b.Harm + b.Own
	for _, p := range r.Blame {
		i, ok := index[p.Victim]
		if p.Blocker != b.Class || !ok {
			continue
		}
		row.Cells[i] = matrixCell{Hours: p.Hours, Own: p.Victim == p.Blocker}
		rest -= p.Hours
	}
	if m.Others {
		row.Cells = append(row.Cells, matrixCell{Hours: math.Max(0, rest)})
	}
	return row
}

// rest sums up the other blockers: what the victims wait in all, without what the
// rows before account for.
func (m *matrixView) rest(blockers []Blocker, victims []ClassWaits) matrixRow {
	row := matrixRow{Blocker: "all others", Cells: make([]matrixCell, len(m.Victims), len(m.Victims)+1)}
	all := 0.0
	for _, b := range blockers {
		row.Harm += b.Harm
		row.Share += b.Share
		all += b.Harm + b.Own
	}
	for i, v := range victims {
		left := v.Hours
		for _, above := range m.Rows {
			left -= above.Cells[i].Hours
		}
		row.Cells[i] = matrixCell{Hours: math.Max(0, left)}
		all -= row.Cells[i].Hours
	}
	if m.Others {
		row.Cells = append(row.Cells, matrixCell{Hours: math.Max(0, all)})
	}
	return row
}

func (m *matrixView) heat() {
	most := 0.0
	for _, row := range m.Rows {
		for _, c := range row.Cells {
			most = math.Max(most, c.Hours)
		}
	}
	for _, row := range m.Rows {
		for i := range row.Cells {
			c := &row.Cells[i]
			if m.Total > 0 {
				c.Share = c.Hours / m.Total
			}
			if most > 0 {
				c.Heat = int(math.Round(100 * math.Sqrt(c.Hours/most)))
			}
		}
	}
}

// Worst is the sentence above the matrix.
func (m *matrixView) Worst() string {
	r := m.Rows[0]
	if r.Harm == 0 {
		return "No class makes another one wait; jobs wait for others of their own class."
	}
	return r.Blocker + " makes others wait most: " + digits3(r.Harm) + " hours, " + percent(r.Share) + " of all that jobs wait for other classes."
}
