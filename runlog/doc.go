// Package runlog reads logs of finished runs and says what they show: how long
// each class of jobs takes, who makes whom wait in one line, and what other lanes
// or more workers would have changed. The what-if replays the log through
// package admission, the planner that the gateway itself starts jobs with.
//
// It is pure: it opens no file, knows no clock and keeps nothing. Readers take an
// io.Reader and account for every row; Analyse turns a Log into a Report, which
// renders as text for people or as JSON (docs/advise.md has the schema).
//
// All times inside are microseconds since the Unix epoch, all durations and waits
// microseconds; a Report has seconds and hours, as the names of its fields say.
package runlog
