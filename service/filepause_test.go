package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/service"
)

// The file's word about a pause counts when it changes, a person's until then.
func TestPauseByTheFile(t *testing.T) {
	run := execSpec().Run
	for _, tt := range []struct {
		name  string
		steps string // f: the file says paused, n: it does not, x: the class is not in it; p, r: a person pauses, resumes
		want  string // after each step: P paused, . not
		told  string // the pauses and resumes in the history, by whom
	}{
		{"said and taken back", "nfn", ".P.", "file paused, file resumed"},
		{"said at first", "fn", "P.", "file paused, file resumed"},
		{"the class leaves the file", "fx", "P.", "file paused, file resumed"},
		{"reloads in between", "ffnn", "PP..", "file paused, file resumed"},
		{"a person paused it before", "npfnr", ".PPP.", "ann paused, ann resumed"},
		{"a person pauses it too", "fpnr", "PPP.", "file paused, ann paused, ann resumed"},
		{"a person pauses it too, then it leaves", "fpx", "PPP", "file paused, ann paused"},
		{"a person pauses it twice", "fppn", "PPPP", "file paused, ann paused"},
		{"a person resumes it", "frfn", "P...", "file paused, ann resumed"},
		{"a person resumes and pauses it", "frpn", "P.PP", "file paused, ann resumed, ann paused"},
		{"said again after a person resumed it", "frnf", "P..P", "file paused, ann resumed, file paused"},
		{"back in the file without a word", "fpxn", "PPPP", "file paused, ann paused"},
		{"a person alone", "npnx", ".PPP", "ann paused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, withFile)
			var got strings.Builder
			for i, step := range tt.steps {
				var err error
				switch step {
				case 'f', 'n':
					f.mustSync(fileOf(fmt.Sprint(i), classes{"c": {Run: run, Paused: step == 'f'}}), true)
				case 'x':
					f.mustSync(fileOf(fmt.Sprint(i), nil), true)
				case 'p':
					_, err = f.svc.PauseClass(t.Context(), "c", admin)
				case 'r':
					_, err = f.svc.ResumeClass(t.Context(), "c", admin)
				}
				f.must(err)
				got.WriteString(map[bool]string{true: "P", false: "."}[f.mustClass("c").Paused])
			}
			var told []string
			for _, e := range f.history("class:c") {
				if e.Event == "paused" || e.Event == "resumed" {
					told = append(told, e.Actor+" "+e.Event)
				}
				if e.Event == "edited" {
					t.Errorf("a pause is told as an edit: %+v", e)
				}
				if e.Actor == service.ActorFile && e.Event != "created" && !strings.Contains(e.Reason, "file") && !strings.Contains(e.Reason, "/etc/lanegate.yaml") {
					t.Errorf("%+v does not say why", e)
				}
			}
			if told := strings.Join(told, ", "); got.String() != tt.want || told != tt.told {
				t.Errorf("%s: %s, %s; want %s, %s", tt.steps, got.String(), told, tt.want, tt.told)
			}
		})
	}
}
