// Package queue holds doorbells: the ways to tell workers that a lane has work.
//
// A bell carries no job. Losing or doubling a ring changes how soon a job
// starts, never whether or how often: workers also look by themselves, and what
// may start is decided in the database only.
package queue
