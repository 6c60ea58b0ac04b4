// Package conformance says what it means to be a backend of flashkit. It runs
// every kernel of a backend, not only the preferred one, through golden
// vectors, named traps, a random sweep against the oracle, and checks of
// behavior: bit-equal repeats, guarded memory, concurrent calls, canceled
// contexts, refused arguments.
//
// Any backend joins with one test:
//
//	func TestConformance(t *testing.T) { conformance.Run(t, mine.New()) }
//
// The error bound belongs to the case, never to a backend. There is no list of
// expected failures: a kernel that does not support a problem says so in Fits.
package conformance
