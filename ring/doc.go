// Package ring computes attention of one sequence over many ranks: goroutines, devices or
// machines, each of which holds a part of the rows and of the keys (context parallelism).
//
// Every rank holds its shard of Q, K, V, O, LSE and of the gradients. A [Cut] says which rows
// and keys these are, [Cut.Shard] cuts tensors and [Cut.Join] joins them. A [Ring] has the
// methods of a dispatcher, Forward and Backward, which take the problem of the whole and the
// tensors of the shard. All ranks call them together.
//
// In step t rank r works on the keys of rank r-t, while those of rank r-t-1 arrive. Keys go
// straight to the rank that reads them, and only those that it reads: what a band hides, and
// sequences that lie on one rank, do not travel. A step is an ordinary problem for an
// ordinary kernel: [flashkit.Band.Shift] says where its keys lie, [flashkit.Problem.Carry]
// goes on with the result of the steps before. In the backward pass the gradients of K and V
// go back one step behind, in float32 where several calls make them, and are added in the order of the steps, so that
// results are bit-equal from run to run.
//
// An ordered Ring gathers K and V first and calls the kernel that one device would call: its
// results have the bits of that device, for any number of ranks.
//
// A [Group] is the transport: [Local] for goroutines of one process, package peer for its GPUs,
// package nccl for GPUs of many processes, package mpi for machines.
package ring
