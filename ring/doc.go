// Package ring computes attention of one sequence over many ranks (context parallelism):
// goroutines, devices or machines.
//
// Every rank holds its shard of Q, K, V, O, LSE and the gradients. A [Cut] assigns rows and keys to
// ranks. [Cut.Shard] cuts tensors, [Cut.Join] joins them. A [Ring] has methods Forward and Backward
// like a dispatcher. The arguments of these methods are the whole problem and the tensors of the
// rank's shard. All ranks make each call together.
//
// In step t, rank r computes with the keys of rank r-t while it receives the keys of rank r-t-1.
// Each rank receives only the keys that it reads, directly from the rank that holds them. A step
// consists of ordinary kernel calls: [flashkit.Band.Shift] sets the position of the keys, and
// [flashkit.Problem.Carry] continues the result of earlier steps. In the backward pass, the
// gradients of K and V return to the keys' rank one step later. These gradients travel in float32
// if several kernel calls contribute to them. Each rank adds the received gradients in the order of
// the steps, so results are bit-equal from run to run.
//
// An ordered Ring gathers K and V first, and calls the kernel that a single device would call. For
// any number of ranks, its results have the same bits as on a single device.
//
// A [Group] is the transport between ranks: [Local] for goroutines of one process, package peer for
// GPUs of one process, package nccl for GPUs of many processes, package mpi for machines.
package ring
