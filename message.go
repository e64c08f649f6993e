package lanegate

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Message is a message of somebody's SQS queue: one that carries a run to a
// consumer (RunSQS), or one that a job came in with and may leave with again.
type Message struct {
	// ID is what the queue named it when it was sent; "" before.
	ID         string
	Body       string
	Attributes map[string]MessageAttribute
	// Group is its MessageGroupId, Dedup its MessageDeduplicationId; "" for none.
	Group, Dedup string
}

// MessageAttribute is one attribute of a message. Its type says which of the
// values counts: Binary, perhaps with a suffix of the sender's own (Binary.gzip),
// has Bytes; String, Number and theirs have Text.
type MessageAttribute struct {
	Type  string `json:"type"`
	Text  string `json:"text,omitempty"`
	Bytes []byte `json:"bytes,omitempty"`
}

// Limits of an SQS message: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html.
const (
	MaxMessageSize       = 1 << 20 // bytes of body and attributes; a queue may allow less
	MaxMessageAttributes = 10
)

// Size is what SQS counts against a message's limit: the bytes of the body and of
// the attributes' names, types and values.
func (m Message) Size() int {
	size := len(m.Body)
	for name, a := range m.Attributes {
		size += len(name) + len(a.Type) + len(a.Text) + len(a.Bytes)
	}
	return size
}

// Check says why SQS could take the message in no queue; nil when it may.
func (m Message) Check() error {
	if size := m.Size(); size > MaxMessageSize {
		return fmt.Errorf("it has %d bytes with its attributes, and SQS takes %d at most; put the data where the consumer can fetch them and send a reference", size, MaxMessageSize)
	}
	if m.Body == "" {
		return fmt.Errorf("it is empty, and SQS takes no empty message")
	}
	if at, bad := unsendable(m.Body); at >= 0 {
		return fmt.Errorf("at byte %d it has the character %U, which SQS takes in no message; in JSON it can be written as an escape (\\u%04x)", at, bad, bad)
	}
	if len(m.Attributes) > MaxMessageAttributes {
		return fmt.Errorf("it has %d attributes, and SQS takes %d at most", len(m.Attributes), MaxMessageAttributes)
	}
	return nil
}

// unsendable finds the first character that SQS refuses: it takes #x9, #xA, #xD,
// #x20 to #xD7FF, #xE000 to #xFFFD and #x10000 to #x10FFFF, in UTF-8.
func unsendable(s string) (at int, r rune) {
	for i, r := range s {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
		case r < 0x20 || r == 0xfffe || r == 0xffff:
			return i, r
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)): // no UTF-8
			return i, r
		}
	}
	return -1, 0
}

var queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// CheckQueue says what is wrong with the name or the URL of an SQS queue; "" when
// it may be one.
func CheckQueue(queue string) string {
	name, fifo := strings.CutSuffix(QueueName(queue), FIFOSuffix)
	if IsQueueURL(queue) {
		u, err := url.Parse(queue)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || name == "" {
			return "must be the name of a queue, or its URL as SQS gives it: https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
		}
	}
	if longest := 80; !queueName.MatchString(name) || fifo && len(name)+len(FIFOSuffix) > longest {
		return "must be the name of a queue (1 to 80 letters, digits, - and _, with .fifo behind for a FIFO queue), or its URL"
	}
	return ""
}

// FIFOSuffix ends the name of every FIFO queue, and of no other.
const FIFOSuffix = ".fifo"

// IsQueueURL says whether a queue is given by its URL.
func IsQueueURL(queue string) bool { return strings.Contains(queue, "://") }

// QueueName is a queue's name, also where it is given by its URL.
func QueueName(queue string) string {
	if !IsQueueURL(queue) {
		return queue
	}
	return queue[strings.LastIndexByte(queue, '/')+1:]
}

// SendFault sorts what became of a message that SQS did not take for certain.
type SendFault int

// What can become of a message.
const (
	// SendRefused: it was not enqueued, and the same message never will be.
	SendRefused SendFault = iota
	// SendNotNow: it was not enqueued; once something is mended, it may be.
	SendNotNow
	// SendThrottled: it was not enqueued; the queue asks to slow down.
	SendThrottled
	// SendUnanswered: it may have been enqueued, even several times.
	SendUnanswered
)

// SendError is why a message may not be in its queue. Its text says what to do.
type SendError struct {
	Fault SendFault
	// Away: nobody could be reached; trying again at once may help.
	Away bool
	Text string
	Err  error
}

// Error implements error.
func (e *SendError) Error() string { return e.Text }

// Unwrap returns what SQS or the network said.
func (e *SendError) Unwrap() error { return e.Err }
