package api

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/lanegate/lanegate"
)

// C59 and invariant 8: the bytes that were sent are the bytes that are shown.
func TestPayloadIsShownByteForByte(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for name, payload := range map[string]string{
		"big numbers":     `[3889108265204450030,899999999999999990,1e400,0.1000000000000000055,-0,1E+2]`,
		"white space":     "{ \"a\" :\t[ 1 , 2 ],\n  \"b\":{} }",
		"escapes":         `{"\u0041":"\/\u00e9\ud835\udc59<>&"}`,
		"order of keys":   `{"z":1,"a":2,"m":3}`,
		"a plain string":  `"text"`,
		"null":            `null`,
		"a false boolean": `false`,
	} {
		t.Run(name, func(t *testing.T) {
			j := into[job](g.do("POST", "/jobs", `{"class":"c","payload":`+payload+`}`).want(http.StatusCreated))
			body := g.do("GET", "/jobs/"+j.ID, "").want(http.StatusOK).body
			if !bytes.Contains(body, []byte(`"payload":`+payload)) {
				t.Errorf("GET shows %s, want the payload %s", body, payload)
			}
		})
	}
}

func TestResultIsShownByteForByteAlsoToAReplay(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	const request, result = `{"class":"c","idempotency_key":"k"}`, "{ \"rows\": 3889108265204450030 }"
	j := g.submit(request)
	grants := g.admit(g.worker())
	if len(grants) != 1 {
		t.Fatalf("%d grants", len(grants))
	}
	g.end(grants[0], lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(result)})
	for _, a := range []answer{g.do("GET", "/jobs/"+j.ID, ""), g.do("POST", "/jobs", request)} {
		if a.want(http.StatusOK); !bytes.Contains(a.body, []byte(`"result":`+result)) {
			t.Errorf("the answer lacks the result %s: %s", result, a.body)
		}
	}
}
