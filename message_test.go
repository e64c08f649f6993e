package lanegate

import (
	"strings"
	"testing"
)

func TestMessageCheck(t *testing.T) {
	attributes := map[string]MessageAttribute{"Name": {Type: "String", Text: "value"}} // 15 bytes
	many := map[string]MessageAttribute{}
	for c := 'a'; c <= 'k'; c++ {
		many[string(c)] = MessageAttribute{Type: "Number", Text: "1"}
	}
	for _, tt := range []struct {
		name string
		m    Message
		want string // part of the fault; "" for none
	}{
		{"JSON with all that SQS takes", Message{Body: "{\"a\":\t\"\r\n\u00e9\u2028\ud7ff\ue000\ufffd\U00010000\U0010ffff\x7f\"}"}, ""},
		{"as large as it may be", Message{Body: strings.Repeat("x", MaxMessageSize-15), Attributes: attributes}, ""},
		{"a byte too large", Message{Body: strings.Repeat("x", MaxMessageSize-14), Attributes: attributes}, "1048577 bytes"},
		{"empty", Message{}, "empty"},
		{"a control character", Message{Body: "ab\x01"}, "byte 2 it has the character U+0001"},
		{"NUL", Message{Body: "\x00"}, "U+0000"},
		{"U+FFFE", Message{Body: "\ufffe"}, `\ufffe`},
		{"U+FFFF", Message{Body: "x\uffff"}, "U+FFFF"},
		{"no UTF-8", Message{Body: "x\xff"}, "U+FFFD"},
		{"eleven attributes", Message{Body: "x", Attributes: many}, "11 attributes"},
	} {
		err := tt.m.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestQueueName(t *testing.T) {
	for queue, want := range map[string]string{
		"work": "work", "work.fifo": "work.fifo", "https://sqs.eu-west-1.amazonaws.com/1/work.fifo": "work.fifo",
	} {
		if got := QueueName(queue); got != want {
			t.Errorf("QueueName(%q) = %q", queue, got)
		}
	}
}
