package lanegate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Fingerprint digests what a proof of parallel safety is about: the resolved
// run and the units. A changed timeout, overlap policy or description leaves it
// as it is. commandDigest stands for the resolved command (argv, directory,
// names of environment variables); it is "" while no definition was seen.
//
// The result is 16 hex digits of a SHA-256 over a canonical JSON text, which
// encoding/json gives because it sorts map keys.
func Fingerprint(s ClassSpec, commandDigest string) string {
	run := s.Run
	run.Heartbeat = 0 // a liveness limit, like Timeout
	text, err := json.Marshal(struct {
		Run      Run
		Command  string
		Units    Units
		Declared bool
	}{run, commandDigest, s.Units, s.Units != nil})
	if err != nil {
		panic("lanegate: fingerprint of plain data: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
