// Package conformance tests backends of flashkit. It runs every kernel of a backend, not only the
// preferred one, on golden vectors, named traps and a random sweep against the oracle. It also
// checks behavior: bit-equal repeats, guarded memory, concurrent calls, canceled contexts, refused
// arguments.
//
// Any backend joins with one test:
//
//	func TestConformance(t *testing.T) { conformance.Run(t, mine.New()) }
//
// The error bound belongs to the case, never to a backend. There are no expected failures: a kernel
// refuses unsupported problems in Fits.
package conformance
