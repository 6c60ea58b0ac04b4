// Package guarded has memory whose first and last bytes lie at pages without access, so that a routine that touches
// what lies outside its operands faults. Tests and the conformance suite place tensors there.
package guarded
