package main

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/alecthomas/kong"

	"github.com/lanegate/lanegate/app"
)

// settingFlags makes one flag for each of the named settings (all when none is
// named) out of the one table that the file and the environment use too. Their
// values stay texts: app.Load judges them together with all others, so that
// every fault is reported at once.
type settingFlags struct {
	settings []app.Setting
	values   reflect.Value // a struct with a *string or *bool per setting
}

func newSettingFlags(keys ...string) (settingFlags, kong.Plugins) {
	var f settingFlags
	var fields []reflect.StructField
	for _, s := range app.Settings() {
		if len(keys) > 0 && !slices.Contains(keys, s.Key) {
			continue
		}
		f.settings = append(f.settings, s)
		typ, placeholder := reflect.TypeFor[*string](), s.Default
		if s.Bool {
			typ = reflect.TypeFor[*bool]()
		}
		if placeholder == "" {
			placeholder = "…"
		}
		tag := fmt.Sprintf("name:%q help:%q placeholder:%q group:%q", s.Flag(), s.Help, placeholder, "Settings:")
		fields = append(fields, reflect.StructField{Name: "F" + strconv.Itoa(len(fields)), Type: typ, Tag: reflect.StructTag(tag)})
	}
	target := reflect.New(reflect.StructOf(fields))
	f.values = target.Elem()
	return f, kong.Plugins{target.Interface()}
}

// given returns the flags that were on the command line, by name.
func (f settingFlags) given() map[string]string {
	out := map[string]string{}
	for i, s := range f.settings {
		switch v := f.values.Field(i).Interface().(type) {
		case *string:
			if v != nil {
				out[s.Flag()] = *v
			}
		case *bool:
			if v != nil {
				out[s.Flag()] = strconv.FormatBool(*v)
			}
		}
	}
	return out
}

// withEnv adds a flag's variable to its help.
func withEnv(v *kong.Value) string {
	for _, s := range app.Settings() {
		if v.Flag != nil && v.Name == s.Flag() {
			return fmt.Sprintf("%s ($%s)", v.Help, s.Env())
		}
	}
	return kong.DefaultHelpValueFormatter(v)
}

// configFile is the flag that subcommands with a configuration share.
type configFile struct {
	Config string `help:"Config file (YAML). See docs/operating.md and examples/retail/lanegate.yaml." placeholder:"FILE" env:"LANEGATE_CONFIG"`
}

func (c configFile) sources(t terminal, flags settingFlags) app.Sources {
	return app.Sources{File: c.Config, Env: t.env, Flags: flags.given()}
}
