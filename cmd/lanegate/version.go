package main

import (
	"runtime"
	"runtime/debug"
)

// version is set at the link: -ldflags "-X main.version=v1.2.3".
var version string

// versionText is the version, with what the build recorded when nobody named one.
func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if version != "" || !ok {
		if version == "" {
			return "unknown"
		}
		return version
	}
	text := info.Main.Version
	if text == "" {
		text = "(devel)"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if rev := settings["vcs.revision"]; rev != "" && text == "(devel)" {
		text += " " + rev[:min(len(rev), 12)]
		if settings["vcs.modified"] == "true" {
			text += " with changes"
		}
	}
	return text
}

type versionCmd struct{}

// Run prints the version, the toolchain and the platform.
func (versionCmd) Run(t terminal) error {
	t.printf("lanegate %s %s %s/%s\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
