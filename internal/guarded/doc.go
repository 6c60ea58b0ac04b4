// Package guarded provides memory between inaccessible pages, so that a routine that accesses
// memory outside its operands faults. Tests and the conformance suite place tensors there.
package guarded
