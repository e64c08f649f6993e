// Package store keeps jobs, attempts, classes and the run log in a database,
// behind the ports of package service. SQLite is the embedded default.
//
// Statements are written once, with $1 placeholders and two holes, {{now}} and
// {{lock}}, that a dialect fills; statements the engines don't share belong to
// the dialect. Every write is one transaction. Submissions and outcomes of
// concurrent callers share a commit (group.go); a start happens in Admit only.
//
// What may start is decided by package admission, what an outcome does to its
// job by lanegate.Settle. Nothing in here decides either.
package store
