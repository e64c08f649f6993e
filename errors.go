package lanegate

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
)

// Kind sorts errors by what the caller can do about them. The API maps each to
// a status code; nothing else does.
type Kind int

// Kinds of errors. The zero value is an internal fault.
const (
	KindInternal     Kind = iota
	KindBadRequest        // unreadable: 400
	KindInvalid           // understood but wrong: 422
	KindTooLarge          // 413
	KindMediaType         // 415
	KindUnauthorized      // 401
	KindForbidden         // 403
	KindNotFound          // 404
	KindConflict          // 409
	KindLimited           // 429, with RetryAfter
	KindUnavailable       // 503, with RetryAfter
)

// Error is the one error type that crosses package borders with a meaning.
//
// Code is API: stable, never renamed. Message is one sentence that may be shown
// to a client and says what to do. Err is the private cause and reaches only the
// log. Fields points at the offending parts of the input; Details carries
// machine-readable numbers (a 409's "before" and "after", for instance).
type Error struct {
	Kind       Kind
	Code       string
	Message    string
	RetryAfter time.Duration
	Fields     []FieldError
	Details    map[string]any
	Err        error
}

// FieldError names one wrong field by its JSON pointer and says what is wrong.
type FieldError struct {
	Pointer string `json:"pointer" example:"/units/db"`
	Detail  string `json:"detail" example:"must be a whole number of at least 0"`
}

// Error implements error; it includes the private cause, so it is for logs.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString(e.Code + ": " + e.Message)
	for _, f := range e.Fields {
		s.WriteString("; " + f.Pointer + ": " + f.Detail)
	}
	if e.Err != nil {
		s.WriteString(": " + e.Err.Error())
	}
	return s.String()
}

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is match on Kind and Code, so that a copy with another
// message or cause still is the named error.
func (e *Error) Is(target error) bool {
	t, ok := errors.AsType[*Error](target)
	return ok && t.Code == e.Code && t.Kind == e.Kind
}

// With returns a copy of e with another message.
func (e *Error) With(format string, args ...any) *Error {
	c := *e
	c.Message = fmt.Sprintf(format, args...)
	return &c
}

// Because returns a copy of e with a private cause.
func (e *Error) Because(err error) *Error {
	c := *e
	c.Err = err
	return &c
}

// Detail returns a copy of e with one machine-readable detail added.
func (e *Error) Detail(key string, value any) *Error {
	c := *e
	c.Details = make(map[string]any, len(e.Details)+1)
	maps.Copy(c.Details, e.Details)
	c.Details[key] = value
	return &c
}

// Invalid builds the 422 for wrong fields; it returns nil when there are none,
// so that a validator can end with it.
func Invalid(fields []FieldError) error {
	if len(fields) == 0 {
		return nil
	}
	return &Error{
		Kind: KindInvalid, Code: "invalid_fields",
		Message: "some fields are wrong; nothing was changed. Correct what \"fields\" names and send it again.",
		Fields:  fields,
	}
}

// Errors that code branches on. Compare with errors.Is.
var (
	ErrJobNotFound      = &Error{Kind: KindNotFound, Code: "job_not_found", Message: "there is no job with this id (finished jobs are kept for the configured retention only)."}
	ErrAttemptNotFound  = &Error{Kind: KindNotFound, Code: "attempt_not_found", Message: "this job has no attempt with that number."}
	ErrClassNotFound    = &Error{Kind: KindNotFound, Code: "class_not_found", Message: "there is no job class with this id; GET /job-classes lists them."}
	ErrLaneNotFound     = &Error{Kind: KindNotFound, Code: "lane_not_found", Message: "there is no lane with this name; GET /lanes lists them."}
	ErrResourceNotFound = &Error{Kind: KindNotFound, Code: "resource_not_found", Message: "there is no resource with this name; GET /resources lists them."}
	// ErrUnknownClass is the answer to a submission, not to a look-up.
	ErrUnknownClass = &Error{Kind: KindInvalid, Code: "unknown_class", Message: "this job class is not registered. Register it with PUT /job-classes/{id} or in the config file, or configure default_target."}
	// ErrLateWrite: the attempt already has an outcome, or the fence names another one.
	ErrLateWrite = &Error{Kind: KindConflict, Code: "attempt_lost", Message: "this attempt already has an outcome; nothing was changed."}
	// ErrNotDetached: the attempt runs on a worker and has no heartbeat of its own.
	ErrNotDetached          = &Error{Kind: KindConflict, Code: "not_detached", Message: "this attempt lives by its worker's beats and takes no heartbeat of its own; nothing was changed. An agent sends POST /grants/heartbeat."}
	ErrLeaseDiffers         = &Error{Kind: KindConflict, Code: "lease_differs", Message: "the processes on this database have another lease."}
	ErrJobFinal             = &Error{Kind: KindConflict, Code: "job_already_done", Message: "the job is already in a final state; nothing was changed."}
	ErrNotRetryable         = &Error{Kind: KindConflict, Code: "job_not_failed", Message: "only a failed job can be retried; submit a new job instead."}
	ErrNotQueued            = &Error{Kind: KindConflict, Code: "job_not_queued", Message: "only a queued job can be moved to the front of its class's line."}
	ErrKeyReused            = &Error{Kind: KindInvalid, Code: "idempotency_key_reused", Message: "this idempotency key was used before with another body; nothing was enqueued. Use a new key for a new job."}
	ErrUnavailable          = &Error{Kind: KindUnavailable, Code: "store_unavailable", Message: "the database does not answer; try again.", RetryAfter: 5 * time.Second}
	ErrOutcomeUnknown       = &Error{Kind: KindUnavailable, Code: "outcome_unknown", Message: "the commit was not confirmed: the job may or may not have been accepted. Repeat the request with the same idempotency key.", RetryAfter: 2 * time.Second}
	ErrOverloaded           = &Error{Kind: KindLimited, Code: "overloaded", Message: "too many requests wait for the database; nothing was enqueued. Try again.", RetryAfter: 1 * time.Second}
	ErrWorkerGone           = &Error{Kind: KindConflict, Code: "worker_not_live", Message: "this worker was declared dead or has left; start again under a new identity."}
	ErrBuiltinLane          = &Error{Kind: KindConflict, Code: "lane_is_builtin", Message: "this lane is built in and can't be changed that way or deleted."}
	ErrClassExists          = &Error{Kind: KindConflict, Code: "class_exists", Message: "this job class exists already; change it with PUT or PATCH."}
	ErrManagedByFile        = &Error{Kind: KindConflict, Code: "managed_by_file", Message: "this is declared in the config file; edit it there and reload."}
	ErrWouldDemote          = &Error{Kind: KindConflict, Code: "would_demote", Message: "this edit changes the fingerprint of a promoted class, which voids its proof. Repeat with ?demote=true to move it back to serial."}
	ErrWidthLowered         = &Error{Kind: KindConflict, Code: "width_lowered", Message: "this change would lower a lane's width in force. Repeat with ?accept=width if that is meant."}
	ErrWidthOvercommit      = &Error{Kind: KindConflict, Code: "width_overcommitted", Message: "this width is above what the declared resources allow. Choose a smaller one or set allow_overcommit."}
	ErrVerificationNotFound = &Error{Kind: KindNotFound, Code: "verification_not_found", Message: "there is no verification run with this id; GET /verification-runs lists them."}
	// ErrVerificationRefused: the plan can't be carried out; Details["conditions"] has every reason.
	ErrVerificationRefused = &Error{Kind: KindConflict, Code: "verification_refused", Message: "this verification run can't be carried out; nothing was started. \"conditions\" lists every reason."}
	ErrVerificationOver    = &Error{Kind: KindConflict, Code: "verification_over", Message: "the verification run is over already; nothing was changed."}
	// ErrPromotionRefused: the gate; Details["conditions"] has every unmet condition.
	ErrPromotionRefused = &Error{Kind: KindConflict, Code: "promotion_refused", Message: "the class stays where it is. \"conditions\" lists every unmet condition."}
	ErrInUse            = &Error{Kind: KindConflict, Code: "in_use", Message: "this is still in use and can't be deleted."}
)

// KindOf returns the kind of err, KindInternal for errors of other types.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}
