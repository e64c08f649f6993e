package verification_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/verification"
)

// What short runs lacked is said in a unit in which it is not nothing.
func TestOverlapInWords(t *testing.T) {
	for want, runs := range map[string][]verification.Run{
		"a and b ran at once for 20 ms at most; 50 ms were needed": {ran("a", 0, .1), ran("b", .08, .18)},
		"a and b ran at once for 4.0 s at most; 5.0 s were needed": {ran("a", 0, 10), ran("b", 6, 16)},
		"a and b never ran at once; 50 ms were needed":             {ran("a", 0, .1), ran("b", 1, 1.1)},
		"a and b never ran at once; less than 1 ms were needed":    {ran("a", 0, .001), ran("b", 1, 1.1)},
		"a and b never ran at once":                                {ran("a", 0, .1)},
	} {
		j := verification.Judge(over(pairCase(runs...)))
		if len(j.Reasons) != 1 || j.Reasons[0].Message != want {
			t.Errorf("says %+v, want %q", j.Reasons, want)
		}
	}
	c := pairCase()
	c.Spec.Members = c.Spec.Members[:1]
	c.Spec.Members[0].Copies = 3
	j := verification.Judge(over(c))
	if len(j.Reasons) != 1 || j.Reasons[0].Message != "3 copies of a never ran at once" {
		t.Errorf("says %+v", j.Reasons)
	}
	if said := strings.Join(j.Evidence.NotChecked, "\n"); strings.Contains(said, "0 rounds") || !slices.Contains(j.Evidence.NotChecked, "No round in which several run at once took place.") {
		t.Errorf("not checked:\n%s", said)
	}
}
