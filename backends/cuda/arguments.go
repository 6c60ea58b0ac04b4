package cuda

import "github.com/flashkit-go/flashkit"

// arguments are what a call needs on the heap: the block that the driver copies, of
// which plain instances take a part, the checked call, and what its sequences say.
type arguments struct {
	mapped
	features
	call        flashkit.Call
	hasFeatures bool
	seqArrays   [5][]int32     // of Sequences
	seqLens     [5]int         // how long each of them is
	seqWords    int            // all of them that are to be copied
	seqInts     []int32        // these, one after the other: see join
	seqAt       Pointer        // where they lie in the workspace,
	kept        *seqCache      // unless it is not nil: in the stream's memory;
	foreign     *foreignCaches // or in that of a stream of another library
	shapes      [4][4]int      // of Q, K, V and O in memory, of a call with features
	spare       int            // multiprocessors that are left to others
	beside      bool           // of other work

	whole *flashkit.Problem // of which the call is a part, or nil
}

// wholeOf is the problem of which a call of p is a part, or p.
func (a *arguments) wholeOf(p *flashkit.Problem) *flashkit.Problem {
	if a.whole != nil {
		return a.whole
	}
	return p
}

// reset describes a call, of which p is all or a chunk, but for its tensors and sequences.
func (a *arguments) reset(p flashkit.Problem, c *flashkit.Call) {
	a.spare, a.beside, a.whole = 0, false, nil
	a.setProblem(p)
	a.setFeatures(c)
}

// view returns the view of argument i of allArguments.
func (a *arguments) view(i int) *view {
	if i < len(a.views) {
		return &a.views[i]
	}
	return [...]*view{&a.bias, &a.dbias, &a.mask, &a.slopes, &a.sink, &a.dsink}[i-len(a.views)]
}

// set describes a call on the device's memory.
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

// finish adds the sequences, and what depends on where the tensors lie.
func (a *arguments) finish(c *flashkit.Call, seqs *flashkit.Sequences) {
	a.align(&c.Problem, c.Args.Bias.DType().Size())
	a.setSequences(seqs)
}
