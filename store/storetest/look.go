package storetest

import (
	"context"
	"errors"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var lookCases = []testCase{
	{"a look sees one state", func(e *env) {
		e.class("a")
		first := e.queue("a", 1)
		list := func(ctx context.Context) (ids []string) {
			jobs, _, err := e.s.Jobs(ctx, service.JobFilter{})
			e.must(err)
			for _, j := range jobs {
				ids = append(ids, j.ID)
			}
			return ids
		}
		var second []string
		e.must(e.s.Look(e.ctx(), func(ctx context.Context) error {
			e.sameList("the first read", list(ctx), first)
			second = e.queue("a", 1)
			e.sameList("the same look after a submission", list(ctx), first)
			in, err := e.s.Snapshot(ctx)
			e.must(err)
			equal(e, "due jobs in the snapshot", len(in.Due), 1)
			_, err = e.s.Job(ctx, second[0])
			e.wantErr(err, lanegate.ErrJobNotFound)
			return e.s.Look(ctx, func(ctx context.Context) error {
				e.sameList("a look within", list(ctx), first)
				return nil
			})
		}))
		e.sameList("after the look", list(e.ctx()), append(second, first...))
	}},
	{"a look returns the error of its caller", func(e *env) {
		mine := errors.New("mine")
		if err := e.s.Look(e.ctx(), func(context.Context) error { return mine }); !errors.Is(err, mine) {
			e.Errorf("error %v, want the one that was returned", err)
		}
	}},
	{"first in line over classes of all lengths", func(e *env) {
		for _, class := range []string{"a", "b", "c", "d", "none"} {
			e.class(class)
		}
		var line []string
		for _, part := range []struct {
			class string
			n     int
		}{{"a", 2}, {"b", 9}, {"c", 1}, {"a", 1}, {"b", 3}, {"d", 5}} { // the front is b's
			line = append(line, e.queue(part.class, part.n)...)
		}
		_, err := e.s.RunNext(e.ctx(), line[20], "ada")
		e.must(err)
		line = append([]string{line[20]}, line[:20]...)
		for _, max := range []int{1, 2, 5, 12, 21, 50} {
			got, err := e.s.FirstInLine(e.ctx(), []string{"a", "b", "c", "d", "none"}, max)
			e.must(err)
			e.sameList("first in line", got, line[:min(max, len(line))])
		}
		got, err := e.s.FirstInLine(e.ctx(), nil, 5)
		e.must(err)
		equal(e, "jobs first in the line of no class", len(got), 0)
		got, err = e.s.FirstInLine(e.ctx(), []string{"a"}, 0)
		e.must(err)
		equal(e, "none of those first in line", len(got), 0)
	}},
}
