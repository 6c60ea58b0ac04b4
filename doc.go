// Package flashkit defines the types shared by all backends: Problem, Tensor,
// Kernel, Backend and the errors. It computes nothing itself.
//
// A backend is a list of kernels. Package dispatch runs the one that is
// predicted fastest among those that fit. Package conformance runs every one
// of them. Most programs open a dispatcher and call it:
//
//	d, err := dispatch.Default(ctx)
//	...
//	err = d.Forward(ctx, problem, &flashkit.Args{Q: q, K: k, V: v, O: o})
//
// Attention here is exact. For every query row i, with s[j] = Scale * dot(Q[i], K[j])
// over the keys j that the row sees,
//
//	O[i]   = sum over j of softmax(s)[j] * V[j]
//	LSE[i] = ln(sum over j of exp(s[j]))
//
// and nothing of size rows x keys is ever stored (Dao et al., FlashAttention,
// 2022; docs/algorithm.md derives both passes).
package flashkit
