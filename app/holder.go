package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lanegate/lanegate"
)

// maxHolderRuns bounds the runs that a refusal names.
const maxHolderRuns = 10

// withHolderRuns adds to the store's refusal what the holder of the database
// still runs: that is what a waiting start waits for. The store names the holder
// only, and the database can't be asked; but each run has a guard, a child of
// the holder, which carries the job's id on its command line. Holders in another
// container can't be looked at; the refusal then stays as it is.
func withHolderRuns(err error, database string) error {
	pid := lockHolder(database)
	if pid == 0 || pid == os.Getpid() { // the lock is ours: something else is wrong
		return err
	}
	jobs := guardedJobs("/proc", pid)
	if len(jobs) == 0 {
		return err
	}
	return fmt.Errorf("%w; process %d still runs %s", err, pid, runsText(jobs))
}

// runsText counts and names the runs that a start waits for.
func runsText(jobs []string) string {
	list := strings.Join(jobs[:min(len(jobs), maxHolderRuns)], ", ")
	if len(jobs) > maxHolderRuns {
		list += ", …"
	}
	return lanegate.Count(len(jobs), "job") + ": " + list
}

// lockHolder is the process that wrote itself into the database's lock file last;
// 0 when that can't be told.
func lockHolder(database string) int {
	real, err := filepath.EvalSymlinks(database)
	if err != nil {
		return 0
	}
	text, err := os.ReadFile(real + ".lock")
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}

// guardedJobs are the jobs whose guards are children of pid.
func guardedJobs(proc string, pid int) []string {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var jobs []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil || parentOf(string(stat)) != pid {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		if err != nil {
			continue // it has just ended
		}
		if args := strings.Split(string(cmdline), "\x00"); len(args) > 2 && args[1] == "guard" && lanegate.ValidID(args[2]) {
			jobs = append(jobs, args[2])
		}
	}
	return jobs
}

// parentOf reads the parent's id out of /proc/<pid>/stat: the second field behind
// the name, which stands in parentheses and may hold any character.
func parentOf(stat string) int {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	pid, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return pid
}
