package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate/service"
)

func TestSubmitRefuses(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for _, tt := range []struct {
		name, body string
		status     int
		code       string
		pointer    string // of the first field, "" when none is named
		says       string // in the document
	}{
		{"nothing but a brace", `{`, 400, "bad_json", "", "near byte 1"},
		{"a missing value", `{"class":}`, 400, "bad_json", "", "near byte 9"},
		{"single quotes", `{'class':'c'}`, 400, "bad_json", "", ""},
		{"a trailing comma", `{"class":"c",}`, 400, "bad_json", "", ""},
		{"NaN", `{"class":"c","payload":NaN}`, 400, "bad_json", "", ""},
		{"a leading zero", `{"class":"c","payload":012}`, 400, "bad_json", "", ""},
		{"white space only", " \n\t", 400, "empty_body", "", "body is empty"},
		{"a byte order mark", "\ufeff{\"class\":\"c\"}", 400, "bad_json", "", ""},
		{"invalid UTF-8 in the payload", "{\"class\":\"c\",\"payload\":\"\xf8\"}", 400, "invalid_utf8", "", "UTF-8"},
		{"invalid UTF-8 in a key", "{\"class\":\"c\",\"payload\":{\"\xff\":1}}", 400, "invalid_utf8", "", "UTF-8"},
		{"Latin-1", "{\"class\":\"c\",\"payload\":\"M\xfcller\"}", 400, "invalid_utf8", "", "UTF-8"},

		{"an array", `[{"class":"c"}]`, 422, "array_body", "", "MaxBatchSize"},
		{"an empty array", `[]`, 422, "array_body", "", "/jobs/batch"},
		{"null", `null`, 422, "not_an_object", "", "JSON object"},
		{"a string", `"c"`, 422, "not_an_object", "", ""},
		{"a number", `7`, 422, "not_an_object", "", ""},
		{"true", `true`, 422, "not_an_object", "", ""},
		{"no class", `{}`, 422, "invalid_fields", "/class", "required"},
		{"class null", `{"class":null}`, 422, "invalid_fields", "/class", "required"},
		{"class is a number", `{"class":7}`, 422, "wrong_type", "/class", "a number"},
		{"class is an object", `{"class":{"id":"c"}}`, 422, "wrong_type", "/class", "an object"},
		{"class is not a slug", `{"class":"Ω"}`, 422, "invalid_fields", "/class", "a-z0-9"},
		{"an unknown class", `{"class":"pos-sale"}`, 422, "unknown_class", "", "PUT /job-classes/pos-sale"},
		{"an unknown field", `{"class":"c","paylod":1}`, 422, "unknown_field", "/paylod", `did you mean \"payload\"?`},
		{"a field in capitals", `{"Class":"c"}`, 422, "unknown_field", "/Class", `did you mean \"class\"?`},
		{"an unknown field like none", `{"class":"c","priority":1}`, 422, "unknown_field", "/priority", "not a field here"},
		{"a class twice", `{"class":"c","class":"c"}`, 422, "duplicate_key", "/class", "twice"},
		{"a payload key twice", `{"class":"c","payload":{"a":[{"b":1,"b":2}]}}`, 422, "duplicate_key", "/payload/a/0/b", "twice"},
		{"the same key by an escape", `{"class":"c","payload":{"a":1,"\u0061":2}}`, 422, "duplicate_key", "/payload/a", "twice"},
		{"data behind", `{"class":"c"}{"class":"c"}`, 422, "trailing_data", "", "behind"},
		{"rubbish behind", `{"class":"c"} x`, 422, "trailing_data", "", "behind"},
		{"NUL in the payload", `{"class":"c","payload":"a\u0000b"}`, 422, "nul_character", "/payload", "U+0000"},
		{"NUL deep in the payload", `{"class":"c","payload":[{"a":"\u0000"}]}`, 422, "nul_character", "/payload/0/a", "U+0000"},
		{"NUL in a payload key", `{"class":"c","payload":{"\u0000":1}}`, 422, "nul_character", "/payload/\x00", "U+0000"},
		{"NUL in the class", `{"class":"c\u0000"}`, 422, "nul_character", "/class", "U+0000"},
		{"NUL in the key", `{"class":"c","idempotency_key":"\u0000"}`, 422, "nul_character", "/idempotency_key", "U+0000"},
		{"a raw NUL", "{\"class\":\"c\",\"payload\":\"\x00\"}", 400, "bad_json", "", ""},
		{"half a pair", `{"class":"c","payload":"\ud835"}`, 422, "lone_surrogate", "/payload", "surrogate"},
		{"a pair the wrong way round", `{"class":"c","payload":{"a":"\udc59\ud835"}}`, 422, "lone_surrogate", "/payload/a", "surrogate"},
		{"half a pair in a key", `{"class":"c","payload":{"\udc59":1}}`, 422, "lone_surrogate", "/payload", "surrogate"},
		{"513 levels", `{"class":"c","payload":` + nested(513) + `}`, 422, "too_deep", "/payload", "deeper than 512 levels"},
		{"500,000 brackets in the payload", `{"class":"c","payload":` + strings.Repeat("[", 500_000), 422, "too_deep", "/payload", "deeper than 512 levels"},
		{"500,000 brackets", strings.Repeat("[", 500_000), 422, "array_body", "", ""},
		{"5 MB of brackets", strings.Repeat("[", 5<<20), 413, "body_too_large", "", "1056768 bytes"},

		{"run_at is no time", `{"class":"c","run_at":"tomorrow"}`, 422, "wrong_type", "/run_at", "RFC 3339"},
		{"run_at without zone", `{"class":"c","run_at":"2026-11-29T00:00:00"}`, 422, "wrong_type", "/run_at", "RFC 3339"},
		{"run_at is a number", `{"class":"c","run_at":1764374400}`, 422, "wrong_type", "/run_at", "RFC 3339"},
		{"run_at far ahead", `{"class":"c","run_at":"2999-01-01T00:00:00Z"}`, 422, "invalid_fields", "/run_at", "366 days"},
		{"run_at before 1970", `{"class":"c","run_at":"1969-12-31T23:59:59Z"}`, 422, "invalid_fields", "/run_at", "1970"},
		{"logical_date in words", `{"class":"c","logical_date":"yesterday"}`, 422, "invalid_fields", "/logical_date", "2026-11-29"},
		{"logical_date of a day that is none", `{"class":"c","logical_date":"2026-02-30"}`, 422, "invalid_fields", "/logical_date", ""},
		{"if_failed otherwise", `{"class":"c","if_failed":"again"}`, 422, "invalid_fields", "/if_failed", `\"retry\"`},
		{"an empty key", `{"class":"c","idempotency_key":""}`, 422, "invalid_fields", "/idempotency_key", "leave it out"},
		{"a key with a line end", `{"class":"c","idempotency_key":"a\nb"}`, 422, "invalid_fields", "/idempotency_key", "printable"},
		{"a key of 256 bytes", `{"class":"c","idempotency_key":"` + strings.Repeat("k", 256) + `"}`, 422, "invalid_fields", "/idempotency_key", "255"},
		{"a key that is a number", `{"class":"c","idempotency_key":7}`, 422, "wrong_type", "/idempotency_key", "a number"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := *g
			g.TB = t
			a := g.do("POST", "/jobs", tt.body)
			p := a.refused(tt.status, tt.code)
			pointer := ""
			if len(p.Fields) > 0 {
				pointer = p.Fields[0].Pointer
			}
			if pointer != tt.pointer {
				t.Errorf("points at %q, want %q: %s", pointer, tt.pointer, a.body)
			}
			if !strings.Contains(string(a.body), tt.says) {
				t.Errorf("%s does not say %q", a.body, tt.says)
			}
			if !strings.Contains(p.Detail, "othing was") {
				t.Errorf("%q does not say what became of the job", p.Detail)
			}
		})
	}
	if n := g.count(); n != 0 {
		t.Errorf("%d jobs were enqueued", n)
	}
	g.submit(`{"class":"c"}`) // and it still works
}

// nested is a value of arrays with depth levels.
func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// C59 and invariant 8: the job gets the very bytes that were sent.
func TestSubmitKeepsPayloadsVerbatim(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for name, payload := range map[string]string{
		"big integers":       `[3889108265204450030,899999999999999990,-9223372036854775809]`,
		"big exponents":      `{"a":1e400,"b":-1E-400,"c":1e+2}`,
		"long fractions":     `0.1000000000000000055`,
		"negative zero":      `[-0,-0.0,0e0]`,
		"order of keys":      `{"z":1,"a":{"y":1,"b":2},"m":3}`,
		"escapes":            `"\u00e9\/\u0041\t\"\\\ud835\udc59 é <>&\u2028"`,
		"escaped keys":       `{"\u0061b":1}`,
		"a pair":             `"\ud835\udc59"`,
		"null":               `null`,
		"an empty object":    `{}`,
		"an empty array":     `[]`,
		"an empty string":    `""`,
		"false":              `false`,
		"512 levels":         nested(512),
		"a very long number": "[" + strings.Repeat("9", 10_000) + "]",
		"control escapes":    `"\u0001\u001f\u007f"`,
	} {
		t.Run(name, func(t *testing.T) {
			g := *g
			g.TB = t
			sent := g.submit(`{"class":"c","payload":` + payload + `}`)
			stored, err := g.store.Job(t.Context(), sent.ID)
			g.must(err)
			if string(stored.Payload) != payload {
				t.Errorf("stored %.200s, want %.200s", stored.Payload, payload)
			}
			if string(sent.Payload) != payload {
				t.Errorf("POST shows %.200s, want %.200s", sent.Payload, payload)
			}
			if got := g.job(sent.ID); string(got.Payload) != payload {
				t.Errorf("GET shows %.200s, want %.200s", got.Payload, payload)
			}
		})
	}
	t.Run("white space", func(t *testing.T) {
		payload := "{ \"a\" :\r\n\t[ 1 , 2 ] }"
		j := g.submit(`{"payload": ` + payload + ` , "class":"c"}`)
		stored, err := g.store.Job(t.Context(), j.ID)
		g.must(err)
		if string(stored.Payload) != payload {
			t.Errorf("stored %q, want %q", stored.Payload, payload)
		}
	})
	t.Run("no payload", func(t *testing.T) {
		stored, err := g.store.Job(t.Context(), g.submit(`{"class":"c"}`).ID)
		g.must(err)
		if string(stored.Payload) != "null" {
			t.Errorf("stored %q, want null", stored.Payload)
		}
	})
}

// C60: the limit is documented, stated, and holds without reading on but for what
// lets the answer reach a client that writes first.
func TestSubmitLimitsSize(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	body := func(n int) string {
		return `{"class":"c","payload":"` + strings.Repeat("x", n-2) + `"}`
	}
	g.submit(body(255 << 10))
	g.submit(body(257 << 10))
	g.submit(body(1 << 20))
	before := g.count()
	if p := g.do("POST", "/jobs", body(1<<20+1)).refused(413, "payload_too_large"); !strings.Contains(p.Detail, "limit is 1048576") {
		t.Errorf("%q does not state the limit", p.Detail)
	}
	for name, length := range map[string]int64{"with its length": 50 << 20, "chunked": -1} {
		t.Run("50 MB "+name, func(t *testing.T) {
			source := &countingReader{left: 50 << 20}
			req := httptest.NewRequest("POST", "/jobs", source)
			req.ContentLength = length
			req.Header.Set("Content-Type", "application/json")
			a := g.send(req, []byte("{}"))
			if p := a.refused(413, "body_too_large"); !strings.Contains(p.Detail, "1056768 bytes") {
				t.Errorf("%q does not state the limit", p.Detail)
			}
			if a.header.Get("Connection") != "close" {
				t.Error("the connection is kept, so the rest would have to be read")
			}
			if source.read > lingerBytes+1<<21 {
				t.Errorf("%d bytes were read of a body over the limit", source.read)
			}
		})
	}
	if n := g.count(); n != before {
		t.Errorf("%d jobs were enqueued", n-before)
	}
}

// countingReader yields spaces.
type countingReader struct{ left, read int64 }

func (r *countingReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.left)
	if n == 0 {
		return 0, io.EOF
	}
	for i := range p[:n] {
		p[i] = ' '
	}
	r.left, r.read = r.left-n, r.read+n
	return int(n), nil
}

func TestSubmitContentTypes(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	const good = `{"class":"c"}`
	for _, tt := range []struct {
		contentType, body string
		status            int
		code              string
		says              string
	}{
		{"application/json", good, 201, "", ""},
		{"application/json; charset=utf-8", good, 201, "", ""},
		{"Application/JSON;charset=UTF-8", good, 201, "", ""},
		{"application/json; charset", good, 201, "", ""}, // a broken parameter harms nothing
		{"application/vnd.acme.job+json", good, 201, "", ""},
		{"application/octet-stream", good, 201, "", ""},
		{"application/octet-stream", "\n " + good, 201, "", ""},
		{"", good, 201, "", ""},
		{"application/octet-stream", "class=c", 415, "unsupported_media_type", "application/json"},
		{"", "class=c", 415, "unsupported_media_type", "application/json"},
		{"", " ", 400, "empty_body", "empty"},
		{"", "[]", 422, "array_body", "MaxBatchSize"},
		{"application/x-www-form-urlencoded", good, 415, "form_body", "--json"},
		{"application/x-www-form-urlencoded; charset=utf-8", "class=c", 415, "form_body", "Content-Type: application/json"},
		{"multipart/form-data; boundary=x", "--x--", 415, "form_body", "form"},
		{"text/plain", good, 415, "unsupported_media_type", "text/plain"},
		{"text/xml", "<job/>", 415, "unsupported_media_type", "text/xml"},
		{"rubbish", good, 415, "unsupported_media_type", "rubbish"},
		{"application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + good + `,"x":1}`, 201, "", ""},
		{"application/cloudevents+json; charset=utf-8", `{"specversion":"1.0","id":"2","source":"/s","type":"t","data":` + good + `}`, 201, "", ""},
		{"application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"/s","data":{"clas":"c"}}`, 422, "unknown_field", `"/data/clas"`},
		{"application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"/s"}`, 422, "bad_event", `"/data"`},
		{"application/cloudevents+json", `{"specversion":"1.0","source":"/s","data":` + good + `}`, 422, "bad_event", `"/id"`},
		{"application/cloudevents+json", `{"id":"1","source":"/s","data_base64":"e30="}`, 422, "bad_event", `"/data_base64"`},
		{"application/cloudevents+json", `[]`, 422, "array_body", ""},
		{"application/cloudevents+json", `null`, 422, "not_an_object", ""},
		{"application/cloudevents+json", `{"id":7}`, 422, "wrong_type", `"/id"`},
	} {
		t.Run(tt.contentType+" "+tt.body, func(t *testing.T) {
			g := *g
			g.TB = t
			before := g.count()
			a := g.do("POST", "/jobs", tt.body, "Content-Type", tt.contentType)
			if tt.status == 201 {
				a.want(201)
				return
			}
			a.refused(tt.status, tt.code)
			if !strings.Contains(string(a.body), tt.says) {
				t.Errorf("%s does not say %q", a.body, tt.says)
			}
			if n := g.count(); n != before {
				t.Error("a job was enqueued")
			}
		})
	}
	t.Run("compressed", func(t *testing.T) {
		g.do("POST", "/jobs", good, "Content-Encoding", "gzip").refused(415, "unsupported_encoding")
		g.do("POST", "/jobs", good, "Content-Encoding", "identity").want(201)
	})
}

// An event's source and id are its key: a repeat is a replay.
func TestSubmitCloudEventKey(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	send := func(id, data string) answer {
		return g.do("POST", "/jobs", `{"specversion":"1.0","id":"`+id+`","source":"/s","data":`+data+`}`, "Content-Type", "application/cloudevents+json")
	}
	first := into[job](send("1", `{"class":"c"}`).want(201))
	if first.IdempotencyKey != "/s 1" {
		t.Errorf("key %q, want source and id", first.IdempotencyKey)
	}
	if again := into[job](send("1", `{"class":"c"}`).want(200)); again.ID != first.ID {
		t.Error("the same event made a second job")
	}
	if other := into[job](send("2", `{"class":"c","idempotency_key":"own"}`).want(201)); other.IdempotencyKey != "own" {
		t.Errorf("key %q, want the submission's own", other.IdempotencyKey)
	}
}

func TestSubmitKeys(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for _, tt := range []struct{ header, want string }{
		{`bare-key`, "bare-key"},
		{`"quoted key"`, "quoted key"},
		{`"with \"quotes\" and \\"`, `with "quotes" and \`},
		{`  spaces around  `, "spaces around"},
		{"nightly-2026-11-29T00:00Z", "nightly-2026-11-29T00:00Z"},
		{"Größe-√", "Größe-√"},
	} {
		if j := g.submit(`{"class":"c"}`, "Idempotency-Key", tt.header); j.IdempotencyKey != tt.want {
			t.Errorf("header %q gave the key %q, want %q", tt.header, j.IdempotencyKey, tt.want)
		}
	}
	g.submit(`{"class":"c","idempotency_key":"both"}`, "Idempotency-Key", `"both"`)
	before := g.count()
	g.do("POST", "/jobs", `{"class":"c","idempotency_key":"a"}`, "Idempotency-Key", "b").refused(400, "idempotency_keys_differ")
	g.do("POST", "/jobs", `{"class":"c","idempotency_key":"a"}`, "Idempotency-Key", "a", "Idempotency-Key", "a").refused(400, "idempotency_key_twice")
	g.do("POST", "/jobs", `{"class":"c"}`, "Idempotency-Key", `""`).refused(400, "idempotency_key_empty")
	g.do("POST", "/jobs", `{"class":"c"}`, "Idempotency-Key", ` `).refused(400, "idempotency_key_empty")
	g.do("POST", "/jobs", `{"class":"c"}`, "Idempotency-Key", "\xff\xfe").refused(422, "invalid_fields")
	g.do("POST", "/jobs", `{"class":"c"}`, "Idempotency-Key", strings.Repeat("k", 256)).refused(422, "invalid_fields")
	if n := g.count(); n != before {
		t.Errorf("%d jobs were enqueued", n-before)
	}
}

func TestSubmitTimes(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	east := at.In(time.FixedZone("", 2*3600)).Format(time.RFC3339Nano)
	j := g.job(g.submit(`{"class":"c","run_at":"` + east + `","logical_date":"2026-11-29"}`).ID)
	if j.RunAt == nil || !j.RunAt.Equal(at) || j.RunAt.Location() != time.UTC || j.LogicalDate != "2026-11-29" {
		t.Errorf("run_at %v (want %v), logical date %q", j.RunAt, at, j.LogicalDate)
	}
	if j.reasons() != "not_due" || !j.WaitingOn[0].Until.Equal(at) {
		t.Errorf("it waits on %+v, want not_due until %v", j.WaitingOn, at)
	}
	if j := g.submit(`{"class":"c","logical_date":"2026-11-29T00:00:00+01:00"}`); j.LogicalDate != "2026-11-29T00:00:00+01:00" {
		t.Errorf("logical date %q, want it as sent", j.LogicalDate)
	}
}

func TestSubmitAnswer(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	a := g.do("POST", "/jobs", `{"class":"c","payload":{"n":1}}`).want(201)
	j := into[job](a)
	if a.header.Get("Location") != "/jobs/"+j.ID || a.header.Get("Content-Type") != "application/json" ||
		a.header.Get("Cache-Control") != "no-store" || a.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("headers %v", a.header)
	}
	if j.State != "queued" || j.Class != "c" || j.Client != "local" || j.Place.ID != j.ID || j.Links["self"] != "/jobs/"+j.ID {
		t.Errorf("job %s", a.body)
	}
	for rel, link := range j.Links {
		target := link
		if rel == "wait" {
			target += "?timeout=0s"
		}
		g.do("GET", target, "").want(200)
	}
}

// Classes that were never registered need a default target.
func TestSubmitDefaultTarget(t *testing.T) {
	g := newGateway(t, func(s *setup) { s.service.DefaultTarget = defaultTarget() })
	j := g.submit(`{"class":"brand-new"}`)
	c := g.do("GET", "/job-classes/brand-new", "").want(200)
	if !bytes.Contains(c.body, []byte(`"lane":"serial"`)) || g.job(j.ID).Route.Lane != "serial" {
		t.Errorf("a new class is not serial: %s", c.body)
	}
	g.do("POST", "/jobs", `{"class":"Not A Slug"}`).refused(422, "invalid_fields")
}

// Whatever the bytes: no fault of ours, and only what is wholly valid is taken.
func FuzzSubmitBody(f *testing.F) {
	for _, seed := range []string{
		`{"class":"c"}`, `{"class":"c","payload":{"a":[1,2,"\ud835\udc59"]},"idempotency_key":"k"}`, `[]`, `{"class":"c","payload":1e999}`,
		`{"class":"c","run_at":"2026-11-29T00:00:00Z","logical_date":"2026-11-29"}`, "{\"class\":\"\xff\"}", `{"class":"c"}x`, `{"a":{"a":{"a":[[[`, "\x00",
	} {
		f.Add([]byte(seed))
	}
	g := newGateway(f)
	g.class("c")
	f.Fuzz(func(t *testing.T, body []byte) {
		req := httptest.NewRequest(http.MethodPost, "/jobs", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		g.router.ServeHTTP(rec, req)
		if rec.Code >= 500 {
			t.Fatalf("status %d: %s", rec.Code, rec.Body)
		}
		if !json.Valid(rec.Body.Bytes()) {
			t.Fatalf("the answer is not JSON: %q", rec.Body)
		}
		if rec.Code >= 300 {
			return
		}
		if err := service.CheckJSON(body, service.DefaultMaxDepth+1, ""); err != nil {
			t.Fatalf("%q was accepted: %v", body, err)
		}
		var sent struct{ Payload json.RawMessage }
		if err := json.Unmarshal(body, &sent); err != nil {
			t.Fatalf("%q was accepted: %v", body, err)
		}
		var got job
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		stored, err := g.store.Job(t.Context(), got.ID)
		if err != nil {
			t.Fatal(err)
		}
		if sent.Payload != nil && string(stored.Payload) != string(sent.Payload) {
			t.Fatalf("stored %q, sent %q", stored.Payload, sent.Payload)
		}
	})
}
