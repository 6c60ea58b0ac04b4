// Package conformance tests backends of flashkit. It runs every kernel of a backend, not only the
// kernels that dispatch prefers. It compares the kernels' results with golden vectors, and on
// random problems with the oracle. Each trap is a small case that catches one common mistake. The
// suite also tests behavior: repeated and concurrent calls give equal bits, guarded memory stays
// untouched, contexts cancel calls, invalid arguments are refused.
//
// Any backend joins with one test:
//
//	func TestConformance(t *testing.T) { conformance.Run(t, mine.New()) }
//
// The error bound of a case is the same for all backends. A backend cannot declare failures as
// expected: a kernel refuses unsupported problems in Fits.
package conformance
