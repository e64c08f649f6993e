package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of the times in /proc/PID/stat: USER_HZ, which is 100 on
// every architecture that Go runs on (proc(5)).
const clockTick = 10 * time.Millisecond

// CPU is the processor time, user and system, that a process, its children and
// those of them that have ended have taken so far. Unlike a rate it says little
// about who else was at work.
func CPU(pid int) (time.Duration, error) {
	_, ticks, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return 0, err
		}
		if parent, more, err := cpuOf(child); err == nil && parent == pid { // others end meanwhile
			ticks += more
		}
	}
	return time.Duration(ticks) * clockTick, nil
}

// cpuOf reads a process's parent and its own ticks with those of its ended children.
func cpuOf(pid int) (parent int, ticks int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The name, in brackets, may hold anything; the state is the first word behind it.
	at := strings.LastIndexByte(string(text), ')')
	words := strings.Fields(string(text[at+1:]))
	const ppid, utime, cstime = 1, 11, 14 // proc(5): fields 4 and 14 to 17
	if at < 0 || len(words) <= cstime {
		return 0, 0, fmt.Errorf("/proc/%d/stat has no times", pid)
	}
	if parent, err = strconv.Atoi(words[ppid]); err != nil {
		return 0, 0, err
	}
	for _, w := range words[utime : cstime+1] {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		ticks += n
	}
	return parent, ticks, nil
}
