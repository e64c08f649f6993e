package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/guard"
)

// passedByDefault are the variables that every run gets from the gateway.
var passedByDefault = []string{"PATH", "HOME", "LANG", "TZ"}

// defaultPath is a run's PATH where neither the gateway nor the command has one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// plan is a command resolved for one run.
type plan struct {
	path string // absolute
	argv []string
	dir  string // absolute
	env  map[string]string
}

// environ renders the plan's variables, sorted by name.
func (p plan) environ() []string {
	list := make([]string, 0, len(p.env))
	for _, name := range sortedKeys(p.env) {
		list = append(list, name+"="+p.env[name])
	}
	return list
}

// planFault says why a command can't be started. Its text is for people.
type planFault struct {
	text string
	// permanent: starting it again can't help before somebody has mended something.
	permanent bool
}

func (f *planFault) Error() string { return f.text }

// resolve turns the command into a plan for job. payloadFile is the value of
// LANEGATE_PAYLOAD_FILE.
func (c Command) resolve(name string, job Job, payloadFile string) (plan, error) {
	p := plan{argv: c.Argv, dir: absolute(c.Dir), env: map[string]string{}}
	passed := slices.Concat(passedByDefault, c.EnvPass)
	for _, variable := range passed {
		if value, ok := os.LookupEnv(variable); ok {
			p.env[variable] = value
		}
	}
	if c.EnvFile != "" {
		vars, err := readEnvFile(absolute(c.EnvFile))
		if err != nil {
			return plan{}, &planFault{text: fmt.Sprintf("command %q: %v", name, err)}
		}
		maps.Copy(p.env, vars)
	}
	maps.Copy(p.env, c.Env)
	if p.env["PATH"] == "" {
		p.env["PATH"] = defaultPath
	}
	maps.Copy(p.env, map[string]string{
		"LANEGATE_JOB_ID":       job.ID,
		"LANEGATE_ATTEMPT":      strconv.Itoa(job.Attempt),
		"LANEGATE_CLASS":        job.Class,
		"LANEGATE_LOGICAL_DATE": job.LogicalDate,
		"LANEGATE_VERIFICATION": job.Verification,
		"LANEGATE_PAYLOAD_FILE": payloadFile,
		"PGAPPNAME":             "lg/" + job.ID,
	})
	if info, err := os.Stat(p.dir); err != nil || !info.IsDir() {
		return plan{}, &planFault{permanent: true,
			text: fmt.Sprintf("command %q: the directory %s does not exist or can't be entered; check \"dir\" of the command", name, p.dir)}
	}
	var err error
	p.path, err = lookProgram(c.Argv[0], p.dir, p.env["PATH"])
	if err != nil {
		return plan{}, &planFault{permanent: true, text: fmt.Sprintf("command %q: %v", name, err)}
	}
	return p, nil
}

// lookProgram finds the program to execute, absolute. Relative and empty parts of
// PATH are passed over: what runs must not depend on a directory's content.
func lookProgram(program, dir, path string) (string, error) {
	if strings.ContainsRune(program, '/') {
		if !filepath.IsAbs(program) {
			program = filepath.Join(dir, program)
		}
		if err := executable(program); err != nil {
			return "", fmt.Errorf("%s can't be executed: %w; check \"argv\" of the command and the file's mode", program, err)
		}
		return program, nil
	}
	var denied string
	for _, part := range filepath.SplitList(path) {
		if !filepath.IsAbs(part) {
			continue
		}
		candidate := filepath.Join(part, program)
		err := executable(candidate)
		if err == nil {
			return candidate, nil
		}
		if errors.Is(err, fs.ErrPermission) && denied == "" {
			denied = candidate
		}
	}
	if denied != "" {
		return "", fmt.Errorf("%s is not executable; check the file's mode", denied)
	}
	return "", fmt.Errorf("%q was not found in PATH (%s); check \"argv\" of the command, or give the program's full path", program, path)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			return pathErr.Err
		}
		return err
	case info.IsDir():
		return syscall.EISDIR
	case info.Mode()&0o111 == 0:
		return fs.ErrPermission
	}
	return nil
}

// unstartable is the ending of a command that the kernel refused to execute.
func unstartable(name string, p plan, errno syscall.Errno) lanegate.Ending {
	switch errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ETXTBSY:
		return troubled("execute "+p.path, errno)
	}
	hint := `check "argv" of the command`
	switch errno {
	case syscall.ENOENT:
		hint = "if the file exists, the interpreter in its first line does not"
	case syscall.EACCES:
		hint = "check the modes of the file, its directories and its file system"
	case syscall.ENOEXEC:
		hint = "a script needs a first line such as #!/bin/sh, or name its interpreter in \"argv\""
	case syscall.E2BIG:
		hint = "arguments and environment together are too long"
	}
	return lanegate.Ending{
		Outcome:   lanegate.Failed,
		Permanent: true,
		Error:     fmt.Sprintf("command %q: %s could not be executed: %v; %s", name, p.path, errno, hint),
	}
}

// Description is what a run of a job would be, for people.
type Description struct {
	Command  string
	Path     string   // the program, absolute
	Argv     []string // as declared
	Dir      string   // absolute
	EnvNames []string // sorted; values may be secrets and are left out
	EnvFile  string   // absolute, "" when none
	User     string   // name, or number when it has none
	Digest   string
}

// Describe resolves the command of job's run without running it. Its error says
// what is wrong with the command.
func (e *Exec) Describe(job Job) (Description, error) {
	name := job.Run.Command
	command, ok := e.opts.Catalogue.Get(name)
	if !ok {
		return Description{}, &planFault{text: notInCatalogue(name)}
	}
	p, err := command.resolve(name, job, filepath.Join(e.opts.WorkDir, scratchPrefix+"…", guard.PayloadName))
	if err != nil {
		return Description{}, err
	}
	d := Description{Command: name, Path: p.path, Argv: p.argv, Dir: p.dir, EnvNames: sortedKeys(p.env)}
	if command.EnvFile != "" {
		d.EnvFile = absolute(command.EnvFile)
	}
	d.User = strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(d.User); err == nil {
		d.User = u.Username
	}
	d.Digest, _ = e.opts.Catalogue.Digest(name)
	return d, nil
}

func notInCatalogue(name string) string {
	return fmt.Sprintf("there is no command %q in this gateway's configuration; add it under \"commands\" and reload", name)
}
