// Package e2e tests the built binary as its users meet it: real processes, real
// HTTP, real files, and signals at bad moments. What happened is judged by the
// jobs themselves: each writes to one event file, and each run in the serial
// lane must get an exclusive lock that its whole process tree inherits.
package e2e
