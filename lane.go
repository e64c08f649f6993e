package lanegate

import "time"

// Order is how a lane chooses among its classes' heads.
type Order string

// Orders of a lane.
const (
	// OrderFIFO: the smallest place first.
	OrderFIFO Order = "fifo"
	// OrderFair: the class with the fewest attempts in flight first, then the smallest place.
	OrderFair Order = "fair"
)

// WhenUnavailable says what a lane's classes do while the lane is not available.
type WhenUnavailable string

// What happens to the classes of an unavailable lane.
const (
	FallbackSerial WhenUnavailable = "serial" // run in serial meanwhile
	FallbackWait   WhenUnavailable = "wait"   // wait for the lane
)

// WidthAuto is the Lane.WidthSetting that asks for the arithmetic's width.
const WidthAuto = 0

// Lane is a line of jobs with a width.
type Lane struct {
	Name            string
	WidthSetting    int // WidthAuto or an explicit number ≥ 1
	AllowOvercommit bool
	Order           Order
	Queue           string // doorbell queue's name; "" is the default name
	Paused          bool
	WhenUnavailable WhenUnavailable
	ManagedBy       ManagedBy
	CreatedAt       time.Time
	UpdatedAt       time.Time

	// Available is derived when the lane is read: its queue has existed and a
	// live worker serves it, or did within the last 60 s.
	Available bool
}

// Builtin says whether the lane exists in every installation.
func (l Lane) Builtin() bool { return l.Name == LaneSerial || l.Name == LaneParallel }

// Validate returns every fault of the lane's declared fields.
func (l Lane) Validate() []FieldError {
	var errs []FieldError
	if !ValidSlug(l.Name) {
		errs = append(errs, FieldError{"/name", "must match [a-z0-9][a-z0-9._-]{0,62}"})
	}
	if l.WidthSetting < 0 || l.WidthSetting > 10_000 {
		errs = append(errs, FieldError{"/width", "must be \"auto\" or a whole number from 1 to 10000"})
	}
	if l.Order != OrderFIFO && l.Order != OrderFair {
		errs = append(errs, FieldError{"/order", "must be \"fifo\" or \"fair\""})
	}
	if l.WhenUnavailable != FallbackSerial && l.WhenUnavailable != FallbackWait {
		errs = append(errs, FieldError{"/when_unavailable", "must be \"serial\" or \"wait\""})
	}
	return errs
}

// Resource is something finite that jobs share.
type Resource struct {
	Name     string
	Capacity int
	// Pool: every class that declares no units counts as using 1 of it.
	Pool      bool
	ManagedBy ManagedBy
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Validate returns every fault of the resource's declared fields.
func (r Resource) Validate() []FieldError {
	var errs []FieldError
	if !ValidSlug(r.Name) {
		errs = append(errs, FieldError{"/name", "must match [a-z0-9][a-z0-9._-]{0,62}"})
	}
	if r.Capacity < 0 || r.Capacity > 1_000_000 {
		errs = append(errs, FieldError{"/capacity", "must be a whole number from 0 to 1000000"})
	}
	return errs
}

// ManagedBy says where a class, lane or resource is declared.
type ManagedBy string

// Owners of a declaration.
const (
	ManagedByAPI  ManagedBy = "api"
	ManagedByFile ManagedBy = "file"
)
