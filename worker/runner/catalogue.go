package runner

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/lanegate/lanegate"
)

// Catalogue is the operator's set of commands, replaced as a whole on reload. It
// is safe for concurrent use; the zero value is an empty catalogue.
type Catalogue struct {
	set atomic.Pointer[commandSet]
}

type commandSet struct {
	commands map[string]Command
	digests  map[string]string
}

// NewCatalogue returns a catalogue of these commands; see Replace for errors.
func NewCatalogue(commands map[string]Command) (*Catalogue, error) {
	c := &Catalogue{}
	if err := c.Replace(commands); err != nil {
		return nil, err
	}
	return c, nil
}

// Replace takes these commands instead of the present ones. When any is faulty
// (an unreadable env file included) the present set stays, and the error is an
// *lanegate.Error whose fields name every fault as /commands/<name>/….
func (c *Catalogue) Replace(commands map[string]Command) error {
	next := &commandSet{commands: map[string]Command{}, digests: map[string]string{}}
	var faults []lanegate.FieldError
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		at := "/commands/" + name
		command := commands[name].clone()
		if !lanegate.ValidSlug(name) {
			faults = append(faults, lanegate.FieldError{Pointer: at,
				Detail: "is not a command name: use lower-case letters, digits, dot, underscore and dash"})
		}
		own := command.Validate()
		for _, fault := range own {
			faults = append(faults, lanegate.FieldError{Pointer: at + fault.Pointer, Detail: fault.Detail})
		}
		if len(own) > 0 {
			continue
		}
		digest, err := command.Digest()
		if err != nil {
			faults = append(faults, lanegate.FieldError{Pointer: at + "/env_file", Detail: err.Error()})
			continue
		}
		next.commands[name], next.digests[name] = command, digest
	}
	if err := lanegate.Invalid(faults); err != nil {
		return err
	}
	c.set.Store(next)
	return nil
}

// clone makes the catalogue's copy independent of the caller's maps and slices.
func (c Command) clone() Command {
	c.Argv, c.EnvPass, c.Env = slices.Clone(c.Argv), slices.Clone(c.EnvPass), maps.Clone(c.Env)
	return c
}

// Get returns a command; the caller must not change what it points to.
func (c *Catalogue) Get(name string) (Command, bool) {
	set := c.set.Load()
	if set == nil {
		return Command{}, false
	}
	command, ok := set.commands[name]
	return command, ok
}

// Digest returns the digest of a command's definition as of the last Replace.
func (c *Catalogue) Digest(name string) (string, bool) {
	set := c.set.Load()
	if set == nil {
		return "", false
	}
	digest, ok := set.digests[name]
	return digest, ok
}

// Digests returns a copy of all digests by name.
func (c *Catalogue) Digests() map[string]string {
	set := c.set.Load()
	if set == nil {
		return map[string]string{}
	}
	return maps.Clone(set.digests)
}
