package app

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// closers is a stack of what has to be closed, last in first out.
type closers struct {
	log   *slog.Logger
	stack []closer
}

type closer struct {
	name string
	fn   func() error
}

func (c *closers) push(name string, fn func() error) {
	c.stack = append(c.stack, closer{name, fn})
}

// close empties the stack; every closer runs, whatever the others answer.
func (c *closers) close() error {
	var errs []error
	for i := len(c.stack) - 1; i >= 0; i-- {
		began := time.Now()
		if err := c.stack[i].fn(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", c.stack[i].name, err))
		}
		c.log.Debug("closed", "part", c.stack[i].name, "took", time.Since(began).Round(time.Millisecond).String())
	}
	c.stack = nil
	return errors.Join(errs...)
}
