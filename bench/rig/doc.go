// Package rig holds what a measurement needs beside the thing that is measured:
// servers with their default durability, the gateway's real binary, a client that
// costs little, a wait for a quiet machine, and the arithmetic of results.
//
// Everything is on this machine, over loopback or unix sockets, and ends with the
// process that started it.
package rig
