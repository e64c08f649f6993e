package runner

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
)

// children lists the processes whose parent is this process, zombies included,
// in ascending order. A child that changes parents during the call may be
// missing: callers that need certainty ask again.
func children() ([]int, error) {
	pids, err := childrenOfThreads()
	if err == nil && pids == nil {
		pids, err = childrenByParent()
	}
	slices.Sort(pids)
	return slices.Compact(pids), err
}

// childrenOfThreads reads what the kernel lists for each thread. It returns nil
// without an error when this kernel has no such lists (CONFIG_PROC_CHILDREN).
func childrenOfThreads() ([]int, error) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, thread := range threads {
		list, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/children")
		if err != nil {
			continue // the thread has just ended, or there are no lists
		}
		if pids == nil {
			pids = []int{}
		}
		for field := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// childrenByParent looks at every process of the host.
func childrenByParent() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, ok := readStat(pid); ok && stat.parent == self {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// procStat is the part of /proc/<pid>/stat that is needed here.
type procStat struct {
	parent  int
	started uint64 // clock ticks since boot
}

// readStat reports false when the process is gone.
func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	// The second field is the program's name in parentheses and may hold
	// anything, parentheses and spaces included.
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return procStat{}, false
	}
	fields := strings.Fields(string(text[end+1:])) // from the third field on
	if len(fields) < 20 {
		return procStat{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return procStat{}, false
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return procStat{}, false
	}
	return procStat{parent: parent, started: started}, true
}
