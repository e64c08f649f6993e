package service

import "sync"

// hub tells waiters that a job has ended. It is a hint within this process:
// waiters also look at the database by themselves.
type hub struct {
	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{} // job id → waiting channels, guarded by mu
}

func newHub() *hub { return &hub{waiters: map[string]map[chan struct{}]struct{}{}} }

// wait returns a channel that is closed when job ends, and a function that gives it up.
func (h *hub) wait(job string) (<-chan struct{}, func()) {
	ch := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters[job] == nil {
		h.waiters[job] = map[chan struct{}]struct{}{}
	}
	h.waiters[job][ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiters[job], ch)
		if len(h.waiters[job]) == 0 {
			delete(h.waiters, job)
		}
	}
}

// finished wakes everyone who waits for job.
func (h *hub) finished(job string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.waiters[job] {
		close(ch)
	}
	delete(h.waiters, job)
}
