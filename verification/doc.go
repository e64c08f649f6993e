// Package verification knows how a verification run is planned, what its runs'
// output says about trouble, and what follows from what they did: the verdict,
// its reasons, and what was not checked. It is pure: no I/O, no clock, no state.
// Carrying a run out is the service's, starting its rounds admission's.
package verification
