package api

import (
	"reflect"
	"testing"

	"github.com/lanegate/lanegate/service"
)

// bodies that are plain, and near misses: what is wrong or unusual about them is
// for the strict decoder to tell.
var (
	plainBodies = []string{
		`{"class":"c"}`,
		`{"class":"c","payload":null}`,
		"\n{ \"class\" : \"c\" ,\r\n\t\"payload\" : { \"a\" : [ 1 , \"é\" ] } } \n",
		`{"payload":{"day":"2026-11-29","store":1234},"idempotency_key":"k 1","logical_date":"2026-11-29","if_failed":"retry","worker":"w","class":"c"}`,
		`{"class":"","idempotency_key":""}`,
	}
	otherBodies = []string{
		``, `{}`, `[]`, `null`, `{"class":"c"`, `{"class":"c",}`, `{"class":"c"}}`, `{"class":"c"} x`, `{"class":"c","class":"c"}`, `{"Class":"c"}`,
		`{"class":"c","payload":1,"payload":1}`, `{"class":"c","payload":}`, `{"class":"c","payload":01}`, `{"class":"c","payload":{"a":1,"a":2}}`,
		`{"class":"c","payload":"\u0000"}`, `{"class":"c","payload":[[[[[1]]]]]}`, `{"class":"é"}`, `{"class":"\u0063"}`, `{"class":null}`, `{"class":1}`,
		`{"class":"c","run_at":"2026-11-29T00:00:00Z"}`, `{"class":"c","more":1}`, `{"class":"c","idempotency_key":null}`, "{\"class\":\"c\x7f\"}",
	}
)

const plainTestDepth = 4

func TestPlainSubmission(t *testing.T) {
	for _, body := range plainBodies {
		if _, ok := plainSubmission([]byte(body), plainTestDepth); !ok {
			t.Errorf("%q is not taken as plain", body)
		}
		asDecoded(t, []byte(body))
	}
	for _, body := range otherBodies {
		if _, ok := plainSubmission([]byte(body), plainTestDepth); ok {
			t.Errorf("%q is taken as plain", body)
		}
	}
}

// FuzzPlainSubmission: what is read in a single pass is what the strict decoder reads.
func FuzzPlainSubmission(f *testing.F) {
	for _, body := range append(plainBodies, otherBodies...) {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		asDecoded(t, body)
		asSplit(t, body)
		asSplit(t, append(append([]byte(`{"jobs":[{"class":"c"},`), body...), `]}`...))
	})
}

// asDecoded holds a plain submission against the strict decoder.
func asDecoded(t *testing.T, body []byte) {
	t.Helper()
	got, ok := plainSubmission(body, plainTestDepth)
	if !ok {
		return
	}
	got.plain = service.Submission{}
	var want submitRequest
	if err := tooDeep(decodeBytes(body, &want, plainTestDepth+1), "/payload", plainTestDepth); err != nil {
		t.Fatalf("%q is taken as plain; the decoder says: %v", body, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q is read as\n%+v, by the decoder as\n%+v", body, got, want)
	}
}

// asSplit holds a plain batch against what takes any batch apart.
func asSplit(t *testing.T, body []byte) {
	t.Helper()
	reqs, ok := plainBatch(body, plainTestDepth, 1<<10)
	if !ok {
		return
	}
	texts, err := service.SplitItems(body, "jobs", service.MaxBatchItems)
	if err != nil || len(texts) != len(reqs) {
		t.Fatalf("%q is taken as %d plain jobs, taken apart as %d: %v", body, len(reqs), len(texts), err)
	}
	for i, text := range texts {
		want, ok := plainSubmission(text, plainTestDepth)
		if !ok || !reflect.DeepEqual(reqs[i], want) {
			t.Fatalf("job %d of %q is read as %+v, alone as %+v", i, body, reqs[i], want)
		}
	}
}

func TestPlainBatch(t *testing.T) {
	for body, want := range map[string]int{
		`{"jobs":[{"class":"c"}]}`: 1,
		" {\n\"jobs\" : [ {\"class\":\"c\"} ,\n{\"class\":\"d\",\"payload\":{}} ] } ": 2,
	} {
		if reqs, ok := plainBatch([]byte(body), plainTestDepth, 1<<10); !ok || len(reqs) != want {
			t.Errorf("%q is taken as %d plain jobs, want %d", body, len(reqs), want)
		}
		asSplit(t, []byte(body))
	}
	for _, body := range []string{
		`{"jobs":[]}`, `{"jobs":[{"class":"c"}`, `{"jobs":[{"class":"c"}]`, `{"jobs":[{"class":"c"},]}`, `{"jobs":[{"class":"c"}],"more":1}`, `{"Jobs":[{"class":"c"}]}`,
		`{"jobs":[{"class":"c"}]} x`, `{"jobs":[{"class":"c"},{"class":1}]}`, `[{"class":"c"}]`, `{"jobs":[{"class":"c","payload":"` + string(make([]byte, 2<<10)) + `"}]}`,
	} {
		if _, ok := plainBatch([]byte(body), plainTestDepth, 1<<10); ok {
			t.Errorf("%.80q is taken as plain", body)
		}
	}
}
