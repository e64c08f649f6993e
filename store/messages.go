package store

import (
	"fmt"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlInsertMessage = `
INSERT INTO job_messages (job_id, queue, message_id, group_id, attributes, body)
VALUES ($1, $2, $3, $4, $5, $6)`
	sqlGetMessage = `
SELECT queue, message_id, group_id, attributes, body
  FROM job_messages
 WHERE job_id = $1`
)

// messageRow is the message that a job came in with.
type messageRow struct {
	Queue      string                                       `db:"queue"`
	ID         string                                       `db:"message_id"`
	Group      string                                       `db:"group_id"`
	Attributes dbJSON[map[string]lanegate.MessageAttribute] `db:"attributes"`
	Body       []byte                                       `db:"body"`
}

// insertOrigin keeps the message beside its job.
func (t *tx) insertOrigin(job string, o service.Origin, payload []byte) error {
	if err := t.one(sqlInsertMessage, nil, originArgs(job, o, payload)...); err != nil {
		return fmt.Errorf("insert the message of job %s: %w", job, err)
	}
	return nil
}

// originArgs are the arguments of sqlInsertMessage; a body that is the payload is
// not kept twice.
func originArgs(job string, o service.Origin, payload []byte) []any {
	var body []byte
	if o.Message.Body != string(payload) {
		body = []byte(o.Message.Body)
	}
	return []any{job, text(o.Queue), o.Message.ID, text(o.Message.Group), dbJSON[map[string]lanegate.MessageAttribute]{o.Message.Attributes}, body}
}

// origin is the message that a job came in with, nil when it came in none.
func (t *tx) origin(job string, payload []byte) (*service.Origin, error) {
	var row messageRow
	found, err := t.get(&row, sqlGetMessage, job)
	if err != nil || !found {
		return nil, err
	}
	body := row.Body
	if body == nil {
		body = payload
	}
	return &service.Origin{Queue: row.Queue, Message: lanegate.Message{
		ID: row.ID, Group: row.Group, Attributes: row.Attributes.v, Body: string(body),
	}}, nil
}
