package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Quiet waits until the machine's processors were idle for at least part of one
// look (0.8 means 80 %), at most for limit, and returns the last part seen.
func Quiet(ctx context.Context, part float64, look, limit time.Duration) (float64, error) {
	end := time.Now().Add(limit)
	for {
		before, err := readCPU()
		if err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(look):
		}
		after, err := readCPU()
		if err != nil {
			return 0, err
		}
		idle := (after.idle - before.idle) / max(1, after.all-before.all)
		if idle >= part || time.Now().After(end) {
			return idle, nil
		}
	}
}

type cpu struct{ idle, all float64 } // ticks

func readCPU() (cpu, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpu{}, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return cpu{}, errors.New("/proc/stat has another form than expected")
	}
	var c cpu
	for i, f := range fields[1:9] { // user nice system idle iowait irq softirq steal
		ticks, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return cpu{}, fmt.Errorf("/proc/stat: %w", err)
		}
		c.all += ticks
		if i == 3 || i == 4 {
			c.idle += ticks
		}
	}
	return c, nil
}
