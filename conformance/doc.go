// Package conformance says what it means to be a backend of flashkit. It runs
// every kernel of a backend, not only the preferred one, through golden
// vectors, named traps, a random sweep against the oracle, and questions of
// conduct: bit-equal repeats, guarded memory, concurrent calls, canceled
// contexts, refused arguments.
//
// A backend, anyone's, joins with one test:
//
//	func TestConformance(t *testing.T) { conformance.Run(t, mine.New()) }
//
// The error bound belongs to the case, never to a backend. There is no list of
// expected failures: a kernel that cannot do a problem says so in Fits.
package conformance
