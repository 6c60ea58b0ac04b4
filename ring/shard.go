package ring

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A place is a contiguous range of rows or keys, with its position in a rank's tensors and in the
// whole tensors.
type place struct {
	seq         int
	from        int // first row in the sequence
	local, rows int // first row in the rank's share of the sequence, and rows of that share
	shard       part
	whole       part
}

// places returns the contiguous ranges of a rank's rows or keys.
func (c *Cut) places(rank int, keys bool) (list []place) {
	spans, packed := c.rows[rank], c.packedQ
	if keys {
		spans, packed = c.keys[rank], c.packedK
	}
	for _, s := range shares(spans, packed) {
		seq := &c.seqs[s.seq]
		batch, first, nb := seq.QBatch, seq.Q0, 1
		if keys {
			batch, first = seq.KVBatch, seq.K0
		}
		if !c.p.Ragged {
			nb = c.p.Batch
		}
		at := 0
		for _, x := range s.spans {
			list = append(list, place{
				seq: s.seq, from: x.From, local: at, rows: lens(s.spans),
				shard: part{s.batch, nb, s.at + at, x.len()},
				whole: part{batch, nb, first + x.From, x.len()},
			})
			at += x.len()
		}
	}
	return list
}

// kind selects how an argument is cut.
type kind int

const (
	byRows kind = iota
	byKeys
	byPairs
	uncut // the same on all ranks: Slopes, Sink and DSink
)

func kindOf(name string) kind {
	switch name {
	case "K", "V", "DK", "DV":
		return byKeys
	case "Bias", "DBias", "Mask":
		return byPairs
	case "Slopes", "Sink", "DSink":
		return uncut
	}
	return byRows
}

func (c *Cut) shape(rank int, k kind, t flashkit.Tensor) [4]int {
	s := t.Shape()
	switch {
	case k == byRows:
		s[2] = c.QLen(rank)
	case k == byKeys:
		s[2] = c.KVLen(rank)
	case k == byPairs && s[2] != 1:
		s[2] = extent(c.rows[rank], false)
	}
	return s
}

// Shard returns a rank's arguments, cut from the whole problem's arguments, on the host. Every
// tensor, outputs included, is a dense copy; Slopes and Sink are copied whole. Workers, Seed and
// Seqs stay the same. It is an error if rank is out of range, or args are on a device or do not fit
// the problem.
func (c *Cut) Shard(rank int, args *flashkit.Args) (*flashkit.Args, error) {
	if err := c.checkShard(rank, args); err != nil {
		return nil, err
	}
	shard := *args
	for _, a := range flashkit.Arguments() {
		whole, k := a.Of(args), kindOf(a.Name)
		if whole.IsZero() {
			continue
		}
		*a.Of(&shard) = zeros(whole.DType(), c.shape(rank, k, *whole))
		if err := c.copy(rank, k, *a.Of(&shard), *whole, toShard); err != nil {
			return nil, fmt.Errorf("ring: %s: %w", a.Name, err)
		}
	}
	return &shard, nil
}

// Join copies a rank's outputs of a pass into the whole problem's arguments, on the host: O and
// LSE, or the gradients. Padding after sequences stays unchanged. Ranks write different rows and
// keys, and may join concurrently. DSink, and DBias of a bias that repeats over rows, are the
// exceptions: every rank writes all elements of these tensors.
func (c *Cut) Join(rank int, pass flashkit.Pass, whole, shard *flashkit.Args) error {
	if err := c.checkShard(rank, whole); err != nil {
		return err
	}
	for _, a := range flashkit.Arguments() {
		to, from := a.Of(whole), a.Of(shard)
		if a.Role(&c.p, pass)&flashkit.Output == 0 || to.IsZero() || from.IsZero() {
			continue
		}
		if err := c.copy(rank, kindOf(a.Name), *from, *to, copyTensor); err != nil {
			return fmt.Errorf("ring: %s: %w", a.Name, err)
		}
	}
	return nil
}

func (c *Cut) checkShard(rank int, args *flashkit.Args) error {
	if rank < 0 || rank >= c.size {
		return &flashkit.ProblemError{Field: "rank", Value: fmt.Sprint(rank), Reason: fmt.Sprintf("must be from 0 to %d", c.size-1)}
	}
	if args == nil {
		return &flashkit.ProblemError{Field: "Args", Value: "nil", Reason: "the arguments are missing"}
	}
	if args.Q.Owner() != nil {
		return &flashkit.ProblemError{Field: "Args", Value: args.Q.Owner().Device(), Reason: "must lie on the host"}
	}
	return nil
}

// toShard copies from the whole tensor to the shard. It is a move function for method copy.
func toShard(whole, shard flashkit.Tensor) error { return copyTensor(shard, whole) }

// copy calls move for each place of the rank, with views of this place in the whole tensor and in
// the shard. For example, copyTensor as move copies the shard to the whole tensor.
func (c *Cut) copy(rank int, k kind, shard, whole flashkit.Tensor, move func(whole, shard flashkit.Tensor) error) error {
	if want := c.shape(rank, k, whole); shard.Shape() != want {
		return fmt.Errorf("has the shape %v on rank %d; must be %v", shard.Shape(), rank, want)
	}
	if k == uncut || k == byPairs && whole.Shape()[2] == 1 {
		return move(whole, shard)
	}
	for _, x := range c.places(rank, k == byKeys) {
		s, w := x.parts(k, whole)
		if w.b+w.nb > whole.Shape()[0] || w.r+w.n > whole.Shape()[2] {
			return fmt.Errorf("has the shape %v: the problem has more rows", whole.Shape())
		}
		if err := move(w.of(whole), s.of(shard)); err != nil {
			return err
		}
	}
	return nil
}

// parts returns the place's part of the shard, and the place's part of the whole tensor, for
// tensors of kind k. Rows of Bias and Mask count from the sequence's first row.
func (x *place) parts(k kind, t flashkit.Tensor) (shard, whole part) {
	if k != byPairs {
		return x.shard, x.whole
	}
	b, nb := x.seq, x.shard.nb
	if t.Shape()[0] == 1 {
		b, nb = 0, 1
	}
	return part{b, nb, x.local, x.shard.n}, part{b, nb, x.from, x.shard.n}
}

// wholeShape returns the shape of the tensor of which t is a shard.
func (c *Cut) wholeShape(k kind, t flashkit.Tensor) [4]int {
	s := t.Shape()
	switch {
	case k == byRows && c.packedQ:
		s[2] = 0
		for i := range c.seqs {
			s[2] = max(s[2], c.seqs[i].Q0+c.seqs[i].N)
		}
	case k == byKeys && c.packedK:
		s[2] = 0
		for i := range c.seqs {
			s[2] = max(s[2], c.seqs[i].K0+c.seqs[i].M)
		}
	case k == byKeys:
		s[2] = c.p.KVLen
	default:
		s[2] = c.p.QLen
	}
	return s
}
