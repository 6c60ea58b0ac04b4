//go:build race || purego

package nn_test

// The race detector allocates, and so does hash/maphash with the tag purego, on which
// dispatch builds.
const allocates = true
