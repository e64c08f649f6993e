package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/app"
)

type tokenCmd struct {
	New  tokenNewCmd  `cmd:"" help:"Make a token; print it once, with its entry for the config file."`
	Hash tokenHashCmd `cmd:"" help:"Read a token from standard input; print its SHA-256 as the config file wants it."`
}

type tokenNewCmd struct {
	Name  string   `required:"" placeholder:"NAME" help:"What logs and histories call the client, e.g. cron."`
	Role  string   `default:"submit" enum:"${roles}" help:"What it may do: ${enum}."`
	Class []string `placeholder:"CLASS" help:"Restrict it to these classes; may be repeated."`
}

// Help implements kong.HelpProvider.
func (tokenNewCmd) Help() string {
	return `The gateway knows only the token's SHA-256: put the printed entry under tokens in the config file, restart, and give the token to the client as a file or variable, never on a command line.

Example:

    lanegate token new --name cron --role submit --class pos-sales`
}

// Run makes a token and prints it.
func (c tokenNewCmd) Run(t terminal) error {
	for _, name := range append([]string{c.Name}, c.Class...) {
		if !lanegate.ValidSlug(name) {
			return usagef("%q is not a name: lower-case letters, digits, dot, underscore and dash", name)
		}
	}
	token, digest := app.NewToken()
	entry := fmt.Sprintf("{name: %s, role: %s, sha256: %s", c.Name, c.Role, digest)
	if len(c.Class) > 0 {
		entry += ", classes: [" + strings.Join(c.Class, ", ") + "]"
	}
	t.printf("The token, shown this once; clients send it as \"Authorization: Bearer …\":\n\n%s\n\n", token)
	t.printf("Its entry in the config file:\n\ntokens:\n  - %s}\n", entry)
	return nil
}

type tokenHashCmd struct{}

// Run hashes the first line of standard input, without its line end.
func (tokenHashCmd) Run(t terminal) error {
	line, err := bufio.NewReader(t.in).ReadString('\n')
	token := strings.TrimRight(line, "\r\n")
	if token == "" {
		return usagef("no token on standard input (%v): pipe it in, like lanegate token hash <file", err)
	}
	t.printf("%s\n", app.HashToken(token))
	return nil
}
