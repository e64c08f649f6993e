// Package app is the gateway as one process: it reads the configuration, builds
// the parts, and holds the order in which they start and stop.
//
// It decides nothing about jobs. What may start is decided by package admission,
// how it is stored by store, run by worker and served by api; app alone sees the
// concrete types on both sides of their ports.
package app
