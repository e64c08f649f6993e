package runlog

import "cmp"

// end is a finish to come.
type end struct {
	at    int64
	job   int32
	class int32
}

// endHeap is a binary heap, the next finish first.
type endHeap []end

func (h endHeap) less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].job, h[j].job)) < 0
}

func (h *endHeap) push(e end) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.less(i, up) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

func (h *endHeap) pop() end {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return top
		}
		if right := down + 1; right < last && s.less(right, down) {
			down = right
		}
		if !s.less(down, i) {
			return top
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
}
