package guard

import (
	"os"
	"slices"
	"strconv"
	"syscall"
)

// Children lists the processes whose parent is this process, zombies included,
// in ascending order. A child that changes parents during the call may be
// missing: callers that need certainty ask again.
func Children() ([]int, error) {
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
		list, err := childrenOfThread("/proc/self/task/" + thread.Name() + "/children")
		if err != nil {
			continue // the thread has just ended, or there are no lists
		}
		if pids == nil {
			pids = []int{}
		}
		pids = append(pids, list...)
	}
	return pids, nil
}

// childrenOfThread reads one of the kernel's lists: numbers, each with a space behind
// it. It makes the calls itself: a guard has no use for the poller that package os
// would set up.
func childrenOfThread(path string) ([]int, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	var pids []int
	var buf [512]byte
	pid := 0
	for {
		n, err := syscall.Read(fd, buf[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return pids, err
		}
		for _, c := range buf[:n] {
			switch {
			case c >= '0' && c <= '9':
				pid = 10*pid + int(c-'0')
			case pid > 0:
				pids, pid = append(pids, pid), 0
			}
		}
	}
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
		if stat, ok := ReadStat(pid); ok && stat.Parent == self {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Stat is the part of /proc/<pid>/stat that is needed here.
type Stat struct {
	Parent  int
	Started uint64 // clock ticks since boot
}

// ReadStat reports false when the process is gone.
func ReadStat(pid int) (Stat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, false
	}
	// The second field is the program's name in parentheses and may hold
	// anything, parentheses and spaces included.
	end := len(text) - 1
	for end >= 0 && text[end] != ')' {
		end--
	}
	// From here on each field is a word with a space before it.
	const parent, started = 4, 22
	var stat Stat
	field := 2
	for _, c := range text[end+1:] {
		switch digit := uint64(c - '0'); {
		case c == ' ':
			field++
		case c < '0' || c > '9': // a letter, a sign, the end of the line
		case field == parent:
			stat.Parent = 10*stat.Parent + int(digit)
		case field == started:
			stat.Started = 10*stat.Started + digit
		}
	}
	return stat, field >= started
}

// Reap takes away one dead child; it reports false while the child lives.
func Reap(pid int) bool {
	for {
		got, err := syscall.Wait4(pid, nil, syscall.WNOHANG|syscall.WALL, nil)
		if err != syscall.EINTR {
			return got == pid || err == syscall.ECHILD
		}
	}
}
