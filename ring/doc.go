// Package ring computes attention of one sequence over many ranks (context parallelism):
// goroutines, devices or machines.
//
// Every rank holds its shard of Q, K, V, O, LSE and the gradients. A [Cut] assigns rows and keys to
// ranks. [Cut.Shard] cuts tensors, [Cut.Join] joins them. A [Ring] has a dispatcher's methods
// Forward and Backward; their arguments are the whole problem and the shard's tensors. All ranks
// call them together.
//
// In step t, rank r works on the keys of rank r-t while the keys of rank r-t-1 arrive. Each rank
// receives only the keys that it reads, straight from their owner. A step is an ordinary problem
// for an ordinary kernel: [flashkit.Band.Shift] places its keys, [flashkit.Problem.Carry] continues
// the previous result. In the backward pass the gradients of K and V return one step later, in
// float32 if several calls make them. They are added in the order of the steps, so results are
// bit-equal from run to run.
//
// An ordered Ring gathers K and V first and calls the kernel that one device would call. Its
// results have that device's bits for any number of ranks.
//
// A [Group] is the transport: [Local] for goroutines of one process, package peer for its GPUs,
// package nccl for GPUs of many processes, package mpi for machines.
package ring
