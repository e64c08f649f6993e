package service

import (
	"bytes"
	"unicode/utf8"
)

// Bounds of a plain value; one that goes beyond is judged by the decoder.
const (
	plainDepth   = 64
	plainMembers = 16 // of one object
)

// PlainValue finds where the JSON value that begins with text ends, if it is plain and
// CheckJSON with maxDepth would have nothing against it; ok false means nothing, and
// CheckJSON has to judge. Plain is what most programs write: names of printable ASCII
// without escapes, no \u, few members and levels. It costs a single pass, which
// allocates nothing.
func PlainValue(text []byte, maxDepth int) (end int, ok bool) {
	p := plainScan{text: text, levels: min(maxDepth, plainDepth)}
	if !p.value() || p.wide && !utf8.Valid(text[:p.at]) {
		return 0, false
	}
	return p.at, true
}

// plainScan passes over plain values; each method returns false where one is not.
type plainScan struct {
	text   []byte
	at     int
	levels int  // that may still be opened
	wide   bool // there are bytes above ASCII, to be judged together
}

// next is the byte that is next, 0 at the end.
func (p *plainScan) next() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *plainScan) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

// take passes space and then c.
func (p *plainScan) take(c byte) bool {
	p.space()
	if p.next() != c {
		return false
	}
	p.at++
	return true
}

func (p *plainScan) value() bool {
	switch c := p.next(); c {
	case '"':
		return p.str()
	case '{', '[':
		if p.levels--; p.levels < 0 {
			return false
		}
		p.at++
		ok := c == '{' && p.members() || c == '[' && p.elements()
		p.levels++
		return ok
	case 't':
		return p.word("true")
	case 'f':
		return p.word("false")
	case 'n':
		return p.word("null")
	default:
		return p.number()
	}
}

func (p *plainScan) word(w string) bool {
	if !bytes.HasPrefix(p.text[p.at:], []byte(w)) {
		return false
	}
	p.at += len(w)
	return true
}

// members passes the rest of an object. Names are compared as they are written, which
// is what they are where there is no escape.
func (p *plainScan) members() bool {
	var names [plainMembers][]byte
	if p.take('}') {
		return true
	}
	for n := range plainMembers {
		p.space()
		name, ok := p.name()
		if !ok {
			return false
		}
		for _, other := range names[:n] {
			if bytes.Equal(name, other) {
				return false
			}
		}
		names[n] = name
		if !p.take(':') {
			return false
		}
		p.space()
		if !p.value() {
			return false
		}
		if p.take('}') {
			return true
		}
		if !p.take(',') {
			return false
		}
	}
	return false
}

func (p *plainScan) elements() bool {
	if p.take(']') {
		return true
	}
	for {
		p.space()
		if !p.value() {
			return false
		}
		if p.take(']') {
			return true
		}
		if !p.take(',') {
			return false
		}
	}
}

// name passes a string of printable ASCII without escapes and returns what it holds.
func (p *plainScan) name() (text []byte, ok bool) {
	if p.next() != '"' {
		return nil, false
	}
	from := p.at + 1
	for i := from; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '"':
			p.at = i + 1
			return p.text[from:i:i], true
		case c < ' ' || c > '~' || c == '\\':
			return nil, false
		}
	}
	return nil, false
}

func (p *plainScan) str() bool {
	for i := p.at + 1; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '"':
			p.at = i + 1
			return true
		case c < ' ':
			return false
		case c >= utf8.RuneSelf:
			p.wide = true
		case c == '\\':
			if i++; i == len(p.text) || bytes.IndexByte([]byte(`"\/bfnrt`), p.text[i]) < 0 {
				return false
			}
		}
	}
	return false
}

// number passes a number (RFC 8259, section 6).
func (p *plainScan) number() bool {
	if p.next() == '-' {
		p.at++
	}
	if p.next() == '0' {
		p.at++
	} else if !p.digits() {
		return false
	}
	if p.next() == '.' {
		if p.at++; !p.digits() {
			return false
		}
	}
	if c := p.next(); c == 'e' || c == 'E' {
		p.at++
		if c := p.next(); c == '+' || c == '-' {
			p.at++
		}
		return p.digits()
	}
	return true
}

func (p *plainScan) digits() bool {
	from := p.at
	for c := p.next(); '0' <= c && c <= '9'; c = p.next() {
		p.at++
	}
	return p.at > from
}
