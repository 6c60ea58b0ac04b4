package cuda

import "github.com/flashkit-go/flashkit"

// arguments are the heap memory of a call: the checked call, the call's sequences, and the block of
// kernel arguments that the driver copies. Kernels without support for features read only the field
// mapped.
type arguments struct {
	mapped
	features
	int8Args
	call        flashkit.Call
	hasFeatures bool
	seqArrays   [5][]int32     // the arrays of Sequences, indexed by seqQLens and so on
	seqLens     [5]int         // lengths of seqArrays
	seqWords    int            // total length of the arrays to copy
	seqInts     []int32        // the arrays concatenated: see joinSeqs
	seqAt       Pointer        // address of seqInts in the workspace
	kept        *seqCache      // if not nil, the stream's cache, which holds the arrays in place of the workspace
	foreign     *foreignCaches // if not nil, the caches for streams of other libraries, used if kept is nil
	shapes      [4][4]int      // shapes of Q, K, V and O in memory, in a call with features
	spare       int            // multiprocessors left to other work
	beside      bool           // other work runs at the same time

	whole *flashkit.Problem // the problem of which the call computes a part (Options.PartOf), else nil
}

// wholeOf returns Options.PartOf, the problem of which the call computes a part. If PartOf is nil,
// wholeOf returns p, the call's own problem.
func (a *arguments) wholeOf(p *flashkit.Problem) *flashkit.Problem {
	if a.whole != nil {
		return a.whole
	}
	return p
}

// reset fills in all arguments of call c, except the call's tensors and sequences. p is the call's
// problem, or the problem of a chunk of the call.
func (a *arguments) reset(p flashkit.Problem, c *flashkit.Call) {
	a.spare, a.beside, a.whole = 0, false, nil
	a.setProblem(p)
	a.setFeatures(c)
}

func (a *arguments) view(i int) *view {
	if i < len(a.views) {
		return &a.views[i]
	}
	return [...]*view{&a.bias, &a.dbias, &a.mask, &a.slopes, &a.sink, &a.dsink, &a.kScale, &a.vScale, &a.params.views[rowMaxView], &a.ranges}[i-len(a.views)]
}

// set fills in the arguments of a call on device tensors.
func (a *arguments) set(c *flashkit.Call) {
	a.reset(c.Problem, c)
	list := allArguments
	if !a.hasFeatures {
		list = list[:len(a.views)]
	}
	for i := range list {
		if x := &list[i]; x.Role(&c.Problem, c.Pass) != 0 {
			a.view(i).set(*x.Of(c.Args))
		}
	}
	a.shapes = [...][4]int{c.Args.Q.Shape(), c.Args.K.Shape(), c.Args.V.Shape(), c.Args.O.Shape()}
	a.finish(c, c.Args.Seqs)
}

func (a *arguments) finish(c *flashkit.Call, seqs *flashkit.Sequences) {
	a.align(&c.Problem, c.Args.Bias.DType().Size())
	a.setSequences(seqs)
}
