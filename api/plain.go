package api

import (
	"bytes"

	"github.com/lanegate/lanegate/service"
)

// plainBody reads what nearly all programs send: one JSON object with the fields of a
// submission, each once, its strings of printable ASCII without escapes, its payload a
// service.PlainValue. It takes a single pass. Where it does not say ok, nothing is
// known: the strict decoder then judges the whole, and its word is the only one about
// faults. run_at is left to it, too.
type plainBody struct {
	text     []byte
	at       int
	maxDepth int // of a payload
}

func (p *plainBody) space() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\n' || p.text[p.at] == '\r' || p.text[p.at] == '\t') {
		p.at++
	}
}

// take passes space, and c if it is next.
func (p *plainBody) take(c byte) bool {
	p.space()
	if p.at == len(p.text) || p.text[p.at] != c {
		return false
	}
	p.at++
	return true
}

// str passes space and a string, and returns what it holds.
func (p *plainBody) str() (text []byte, ok bool) {
	if !p.take('"') {
		return nil, false
	}
	for i := p.at; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '"':
			text, p.at = p.text[p.at:i], i+1
			return text, true
		case c < ' ' || c > '~' || c == '\\':
			return nil, false
		}
	}
	return nil, false
}

// ended says whether nothing is left.
func (p *plainBody) ended() bool {
	p.space()
	return p.at == len(p.text)
}

// submission passes one submission.
func (p *plainBody) submission() (req submitRequest, ok bool) {
	if !p.take('{') {
		return req, false
	}
	var seen plainFields
	for {
		name, ok := p.str()
		if !ok || !p.take(':') || !p.field(string(name), &req, &seen) {
			return req, false
		}
		if p.take('}') {
			return req, true
		}
		if !p.take(',') {
			return req, false
		}
	}
}

// plainFields are those that were there.
type plainFields struct{ class, payload, key, date, ifFailed, worker bool }

// field passes the value of a field.
func (p *plainBody) field(name string, req *submitRequest, seen *plainFields) bool {
	var had *bool
	var into *string
	switch name {
	case "class":
		had, into = &seen.class, &req.Class
	case "idempotency_key":
		had, into = &seen.key, new(string)
		req.IdempotencyKey = into
	case "logical_date":
		had, into = &seen.date, &req.LogicalDate
	case "if_failed":
		had, into = &seen.ifFailed, &req.IfFailed
	case "worker":
		had, into = &seen.worker, &req.Worker
	case "payload":
		if seen.payload {
			return false
		}
		seen.payload = true
		p.space()
		end, ok := req.plain.TakePlain(p.text[p.at:], p.maxDepth)
		p.at += end
		req.Payload = req.plain.Payload
		return ok
	default:
		return false
	}
	text, ok := p.str()
	if !ok || *had {
		return false
	}
	*had, *into = true, string(text)
	return true
}

// plainSubmission reads a body that is one plain submission.
func plainSubmission(body []byte, maxDepth int) (req submitRequest, ok bool) {
	p := plainBody{text: body, maxDepth: maxDepth}
	req, ok = p.submission()
	return req, ok && p.ended()
}

// plainBatch reads the body of a batch whose jobs are plain, of at most maxItem bytes each.
func plainBatch(body []byte, maxDepth int, maxItem int64) (reqs []submitRequest, ok bool) {
	p := plainBody{text: body, maxDepth: maxDepth}
	if !p.take('{') {
		return nil, false
	}
	if name, ok := p.str(); !ok || !bytes.Equal(name, []byte("jobs")) || !p.take(':') || !p.take('[') {
		return nil, false
	}
	reqs = make([]submitRequest, 0, min(service.MaxBatchItems, 1+len(body)/len(`{"class":"c"},`)))
	for {
		p.space()
		from := p.at
		req, ok := p.submission()
		if !ok || int64(p.at-from) > maxItem || len(reqs) == service.MaxBatchItems {
			return nil, false
		}
		if reqs = append(reqs, req); p.take(']') {
			return reqs, p.take('}') && p.ended()
		}
		if !p.take(',') {
			return nil, false
		}
	}
}
