package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/guard"
)

// ExecOptions configure an Exec.
type ExecOptions struct {
	Catalogue *Catalogue // required
	Orphans   *Orphans   // required
	// GuardPath is the command line that starts a guard; by default this binary with
	// the argument "guard", which is one because it links package guard.
	GuardPath []string
	// Grace is the time between TERM and KILL; DefaultGrace when zero.
	Grace time.Duration
	// RunsLock is a file whose flock every process of a run holds shared, so that
	// whoever takes it exclusively knows that no run is left; "" for none.
	RunsLock string
	// WorkDir takes the runs' private directories with their payload files. It is
	// created when missing and must belong to this user alone; by default it is
	// lanegate-<uid> in the system's directory for temporary files.
	WorkDir string
	// Head and Tail are how many bytes of output are kept; DefaultKeep when zero.
	Head, Tail int
	// Stdout and Stderr, when set, get a live copy of what a run prints. A writer
	// that blocks holds up the command.
	Stdout, Stderr io.Writer
	Logger         *slog.Logger // slog.Default when nil
}

// Exec runs commands of the catalogue, each under a guard. It is safe for
// concurrent use.
type Exec struct {
	opts ExecOptions
	// patience is how long a guard may stay silent beyond the grace while it
	// should be ending its run; then it is killed.
	patience time.Duration
}

// NewExec checks the options and prepares the work directory.
func NewExec(o ExecOptions) (*Exec, error) {
	if o.Catalogue == nil || o.Orphans == nil {
		return nil, errors.New("runner: Exec needs a Catalogue and Orphans")
	}
	if len(o.GuardPath) == 0 {
		// The link stays good when a deployment replaces or deletes the file.
		o.GuardPath = []string{"/proc/self/exe", guard.Command}
	}
	if !filepath.IsAbs(o.GuardPath[0]) {
		return nil, fmt.Errorf("runner: the guard's path %q must be absolute", o.GuardPath[0])
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.WorkDir == "" {
		o.WorkDir = filepath.Join(os.TempDir(), "lanegate-"+strconv.Itoa(os.Geteuid()))
	}
	o.WorkDir = absolute(o.WorkDir)
	if err := privateDir(o.WorkDir); err != nil {
		return nil, fmt.Errorf("prepare the directory for payload files: %w", err)
	}
	if o.Head == 0 {
		o.Head = DefaultKeep
	}
	if o.Tail == 0 {
		o.Tail = DefaultKeep
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Exec{opts: o, patience: 10 * time.Second}, nil
}

// Run implements Runner for a run of kind exec.
//
// Exit code 0 is succeeded, 75 (EX_TEMPFAIL) deferred, anything else failed. A
// command that was stopped by us is cancelled or interrupted even when it then
// exits with 0, since many programs do that with their work half done; only a
// cancelled one that exits with 0 counts as succeeded, because nobody would run
// it again. When the guard was killed, the outcome is lost.
//
// A run that this host could not start for want of processes, descriptors or
// disk is deferred: that is no failure of the job.
func (e *Exec) Run(ctx context.Context, job Job, lease Lease) lanegate.Ending {
	began := time.Now()
	end := e.run(ctx, job, lease)
	if end.Duration == 0 {
		end.Duration = time.Since(began)
	}
	return end
}

func (e *Exec) run(ctx context.Context, job Job, lease Lease) lanegate.Ending {
	name := job.Run.Command
	command, ok := e.opts.Catalogue.Get(name)
	if !ok {
		// The catalogue was reloaded after the grant; the next grant knows better.
		return lanegate.Ending{Outcome: lanegate.Interrupted, Error: notInCatalogue(name)}
	}
	lock, refusal := e.lock(ctx)
	if refusal != nil {
		return *refusal
	}
	if lock != nil {
		defer lock.Close()
	}
	dir, err := newScratch(e.opts.WorkDir, job.Payload)
	if err != nil {
		return troubled("write the payload file", err)
	}
	defer func() {
		if err := dir.remove(); err != nil {
			e.opts.Logger.WarnContext(ctx, "payload directory not removed", "job", job.ID, "attempt", job.Attempt, "err", err)
		}
	}()
	p, err := command.resolve(name, job, dir.file)
	if err != nil {
		fault, ok := errors.AsType[*planFault](err)
		return lanegate.Ending{Outcome: lanegate.Failed, Permanent: ok && fault.permanent, Error: err.Error()}
	}

	// Subscribed before the deadline is read: no renewal falls in between.
	renewed, unsubscribe := lease.Subscribe()
	defer unsubscribe()
	spec := e.spec(p, job, dir, lock != nil)
	if deadline, fenced := lease.Deadline(); fenced {
		spec.Deadline = max(deadline, 1)
		if Boottime() >= deadline-e.opts.Grace {
			return stopped(guard.ReasonFenced, "nothing was started")
		}
	}
	if ctx.Err() != nil {
		return stopped(reasonOf(context.Cause(ctx)), "nothing was started")
	}
	r, err := e.launch(job, spec, dir, lock)
	if err != nil {
		return troubled("start its guard", err)
	}
	if lock != nil {
		lock.Close() // the guard has it
	}
	dir.release()
	r.follow(ctx, lease, renewed)
	state := r.settle(ctx)
	return r.ending(p, state)
}

// lock takes the runs lock, nil when there is none to take; refusal is the
// attempt's end when it could not be taken.
func (e *Exec) lock(ctx context.Context) (lock *os.File, refusal *lanegate.Ending) {
	if e.opts.RunsLock == "" {
		return nil, nil
	}
	lock, err := lockRuns(ctx, e.opts.RunsLock)
	if err == nil {
		return lock, nil
	}
	end := troubled("lock "+e.opts.RunsLock, err)
	if ctx.Err() != nil {
		end = stopped(reasonOf(context.Cause(ctx)), "nothing was started")
	}
	return nil, &end
}

func (e *Exec) spec(p plan, job Job, dir *scratch, locked bool) guard.Spec {
	return guard.Spec{
		Path: p.path, Argv: p.argv, Env: p.environ(), Dir: p.dir,
		Grace: e.opts.Grace, Timeout: job.Timeout, Locked: locked, Scratch: dir.dir,
	}
}
