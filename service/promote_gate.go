package service

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// Codes of the conditions of a promotion.
const (
	CodeClassNotFound         = "class_not_found"
	CodeVerificationRequired  = "verification_required"
	CodeVerificationNotFound  = "verification_not_found"
	CodeNotAMember            = "not_a_member"
	CodeVerificationNotPassed = "verification_not_passed"
	CodeSuperseded            = "superseded"
	CodeFingerprintChanged    = "fingerprint_changed"
	CodeProofExpired          = "proof_expired"
	CodeCopiesNotProven       = "copies_not_proven"
	CodeUnitsUndeclared       = "units_undeclared"
	CodeLaneNotFound          = "lane_not_found"
	CodeLaneSerial            = "lane_serial"
	CodeOverCapacity          = "over_capacity"
	CodeWidthLowered          = "width_lowered"
	CodeWidthOvercommitted    = "width_overcommitted"
)

// gate is what a promotion asks for, and what it is judged by.
type gate struct {
	now time.Time // the database's
	// verification is the run that was named, "" when none was; run is nil when it
	// does not exist.
	verification string
	run          *lanegate.Verification
	lane         string
	// asked is the max_in_flight asked for, 0 for as many as are proven.
	asked     int
	resources []lanegate.Resource
}

// passage is what the gate says about one class.
type passage struct {
	// proof is the passed run that the promotion rests on.
	proof lanegate.Proof
	// copies and beside are proven over all runs since the latest failed one.
	copies int
	beside []string
	// unmet has every condition that is not met; empty: it may pass.
	unmet []Condition
}

// judge says whether a class with these proofs may pass, and on what ground. It is
// the whole of "promotion by proof" for one class; what the promotion does to
// widths is judged beside it, for all classes at once.
func (g gate) judge(c lanegate.Class, proofs []lanegate.Proof) passage {
	var p passage
	latest, copies, beside := lanegate.Proven(proofs, c.Fingerprint)
	p.copies, p.beside = copies, beside
	proof, unmet := g.proofOf(c, proofs, latest)
	p.unmet = unmet
	if proof != nil {
		p.proof = *proof
		// A class that is in the lane already keeps what it has however old the proof grows.
		if age := g.now.Sub(proof.EndedAt); age > lanegate.ProofAge && g.raises(c, copies) {
			p.add(CodeProofExpired, c.ID, numbers{"verification": proof.Verification, "ended_at": proof.EndedAt, "age_days": days(age), "max_days": days(lanegate.ProofAge)},
				"verification run %s of class %s ended %d days ago; a new promotion needs one of the last %d days. Verify the class again.",
				proof.Verification, c.ID, days(age), days(lanegate.ProofAge))
		}
	}
	if g.asked > copies {
		p.add(CodeCopiesNotProven, c.ID, numbers{"asked": g.asked, "proven": copies},
			"max_in_flight %d of class %s is more than the proven number of copies, %d. Ask for less, or verify with more copies.", g.asked, c.ID, copies)
	}
	p.unmet = append(p.unmet, g.room(c)...)
	return p
}

// raises says whether the promotion gives the class more than it has.
func (g gate) raises(c lanegate.Class, copies int) bool {
	return c.Lane != g.lane || g.limit(copies) > c.MaxInFlight
}

// limit is the max_in_flight that the promotion sets.
func (g gate) limit(copies int) int {
	if g.asked == 0 {
		return copies
	}
	return g.asked
}

// proofOf finds the passed run that a promotion of c rests on: the one that was
// named, or else the latest.
func (g gate) proofOf(c lanegate.Class, proofs []lanegate.Proof, latest *lanegate.Proof) (*lanegate.Proof, []Condition) {
	var p passage
	switch {
	case g.verification != "" && g.run == nil:
		return nil, nil // said once, for all classes
	case g.verification != "":
		return g.namedProof(c, proofs)
	case latest == nil && len(proofs) == 0:
		p.add(CodeVerificationRequired, c.ID, nil,
			"class %s has no verification run with a verdict. Start one with POST /job-classes/%s/verification-runs.", c.ID, c.ID)
	case latest == nil:
		newest := slices.MaxFunc(proofs, func(a, b lanegate.Proof) int { return a.EndedAt.Compare(b.EndedAt) })
		p.changed(c, newest.Verification, newest.Fingerprint)
	case latest.Verdict != lanegate.VerdictPassed:
		p.add(CodeVerificationNotPassed, c.ID, numbers{"verification": latest.Verification, "verdict": latest.Verdict},
			"the latest verification run of class %s, %s, %s. See why, mend it, and verify again.", c.ID, latest.Verification, latest.Verdict)
	default:
		return latest, nil
	}
	return nil, p.unmet
}

// namedProof judges the run that was named as the proof of c.
func (g gate) namedProof(c lanegate.Class, proofs []lanegate.Proof) (*lanegate.Proof, []Condition) {
	var p passage
	run := g.run
	verified, member := run.Fingerprints[c.ID]
	if !member {
		p.add(CodeNotAMember, c.ID, numbers{"verification": run.ID, "members": slices.Sorted(maps.Keys(run.Fingerprints))},
			"class %s is not a member of verification run %s.", c.ID, run.ID)
		return nil, p.unmet
	}
	if run.Verdict != lanegate.VerdictPassed {
		says := string(run.Verdict)
		if says == "" {
			says = string(run.State)
		}
		p.add(CodeVerificationNotPassed, c.ID, numbers{"verification": run.ID, "state": run.State, "verdict": run.Verdict},
			"verification run %s is %s, not passed.", run.ID, says)
	}
	if verified != c.Fingerprint {
		p.changed(c, run.ID, verified)
	}
	if len(p.unmet) > 0 {
		return nil, p.unmet
	}
	i := slices.IndexFunc(proofs, func(q lanegate.Proof) bool { return q.Verification == run.ID })
	if i < 0 { // its row is what counts, and it has none
		p.add(CodeVerificationNotPassed, c.ID, numbers{"verification": run.ID}, "verification run %s left no proof of class %s.", run.ID, c.ID)
		return nil, p.unmet
	}
	if later := voidedBy(proofs, proofs[i]); later != nil {
		p.add(CodeSuperseded, c.ID, numbers{"verification": run.ID, "by": later.Verification, "ended_at": later.EndedAt},
			"a later verification run of class %s, %s, failed and voids what %s proved. Verify again.", c.ID, later.Verification, run.ID)
	}
	return &proofs[i], p.unmet
}

// voidedBy is the latest failed run of the same fingerprint after proof, nil when there is none.
func voidedBy(proofs []lanegate.Proof, proof lanegate.Proof) *lanegate.Proof {
	var by *lanegate.Proof
	for i, q := range proofs {
		later := q.EndedAt.After(proof.EndedAt) || q.EndedAt.Equal(proof.EndedAt) && q.Verification > proof.Verification
		if q.Verdict == lanegate.VerdictFailed && q.Fingerprint == proof.Fingerprint && later && (by == nil || q.EndedAt.After(by.EndedAt)) {
			by = &proofs[i]
		}
	}
	return by
}

// room lists what of the class's declaration keeps it out of the lane, whatever was proven.
func (g gate) room(c lanegate.Class) []Condition {
	var p passage
	if c.Units == nil {
		p.add(CodeUnitsUndeclared, c.ID, nil,
			"class %s declares no units; say what one run takes, {} if nothing. That changes its fingerprint, so declare first and verify then.", c.ID)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Units)) {
		capacity := 0
		for _, r := range g.resources {
			if r.Name == name {
				capacity = r.Capacity
			}
		}
		if n := c.Units[name]; n > capacity {
			p.add(CodeOverCapacity, c.ID, numbers{"resource": name, "units": n, "capacity": capacity},
				"one run of class %s takes %d of %s, which has %d: it could never start.", c.ID, n, name, capacity)
		}
	}
	return p.unmet
}

// numbers are a condition's.
type numbers = map[string]any

func (p *passage) add(code, class string, n numbers, format string, args ...any) {
	p.unmet = append(p.unmet, Condition{Code: code, Class: class, Message: fmt.Sprintf(format, args...), Numbers: n})
}

func (p *passage) changed(c lanegate.Class, run, verified string) {
	p.add(CodeFingerprintChanged, c.ID, numbers{"verification": run, "verified": verified, "present": c.Fingerprint},
		"verification run %s proved class %s as it was then (fingerprint %s); it is %s now. Verify it as it is, or go back.", run, c.ID, verified, c.Fingerprint)
}

func days(d time.Duration) int { return int(d / (24 * time.Hour)) }
