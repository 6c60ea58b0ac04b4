// Package flashkit defines the types shared by all backends: Problem, Tensor, Kernel, Backend
// and the errors. It computes nothing itself.
//
// A backend is a list of kernels. For each call, package dispatch runs the kernel with the
// lowest predicted time among the kernels that fit the call. Package conformance tests every
// kernel. Most programs open a dispatcher and call it:
//
//	d, err := dispatch.Default(ctx)
//	...
//	err = d.Forward(ctx, problem, &flashkit.Args{Q: q, K: k, V: v, O: o})
//
// Attention here is exact. For every query row i, with scores s[j] = Scale * dot(Q[i], K[j])
// over the keys j that row i sees,
//
//	O[i]   = sum over j of softmax(s)[j] * V[j]
//	LSE[i] = ln(sum over j of exp(s[j]))
//
// The score matrix (rows x keys) is never stored (Dao et al., FlashAttention, 2022;
// docs/design.md derives both passes).
package flashkit
