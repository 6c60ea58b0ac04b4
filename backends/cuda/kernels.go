package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A stem is a source file of kernels/, its instances, and what it takes.
type stem struct {
	name   string // of the file, and of every kernel in it up to the next part
	pass   flashkit.Pass
	arch   int  // the lowest compute capability, times 10
	hopper bool // for that one alone, and with tensor maps
	dtypes []flashkit.DType
	dims   []int // padded head dims, rising
	rows   int   // query rows of a KV head, at most; 0 is no limit
	costs  *costs
}

type stemID int

const (
	fwdSM90 stemID = iota
	fwdSM80
	bwdSM90
	bwdSM80
	fwdF32
	bwdF32
	decodeSM80
)

// dtypes are all there are, by number.
var dtypes = [...]flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}

// maxDims is the most padded head dims that a stem has.
const maxDims = 6

// stems are the rows of the backend's table.
var stems = [...]stem{
	fwdSM90: {"fwd_sm90", flashkit.PassForward, 90, true, dtypes[1:], []int{64, 128, 256}, 0, &fwdSM90Costs},
	fwdSM80: {"fwd_sm80", flashkit.PassForward, 80, false, dtypes[1:], []int{32, 64, 96, 128, 192, 256}, 0, &fwdSM80Costs},
	bwdSM90: {"bwd_sm90", flashkit.PassBackward, 90, true, dtypes[1:], []int{64, 128, 256}, 0, &bwdSM90Costs},
	bwdSM80: {"bwd_sm80", flashkit.PassBackward, 80, false, dtypes[1:], []int{32, 64, 96, 128, 192, 256}, 0, &bwdSM80Costs},
	fwdF32:  {"fwd_f32", flashkit.PassForward, 80, false, dtypes[:1], []int{32, 64, 128, 256, 512}, 0, &fwdF32Costs},
	bwdF32:  {"bwd_f32", flashkit.PassBackward, 80, false, dtypes[:1], []int{32, 64, 128, 256, 512}, 0, &bwdF32Costs},

	decodeSM80: {"decode_sm80", flashkit.PassForward, 80, false, dtypes[:], []int{64, 128, 256}, 64, &decodeCosts},
}

// A part is a kernel of a stem.
type partID int

const (
	partMain   partID = iota
	partDelta         // backward: delta, and zeros
	partFinish        // backward: dQ rounded, where blocks of keys add to it
	partMerge         // decode: the parts of the keys put together
)

var partNames = [...]struct {
	name   string
	perDim bool
}{partMain: {"", true}, partDelta: {"delta", false}, partFinish: {"finish", false}, partMerge: {"merge", true}}

// pad returns which of the stem's head dims a problem is padded to, if one of
// them is wide enough.
func (s *stem) pad(p flashkit.Problem) int {
	i, _ := slices.BinarySearch(s.dims, max(p.Dim, p.VDim))
	return i
}

// A misfit is why a stem does not take a problem.
type misfit uint8

const (
	none misfit = iota
	oldDevice
	newDevice
	otherDType
	wideHead
	manyRows
	longSequence
	manyBlocks
)

// misfit returns why a valid problem is not for the stem on a device. It does not
// allocate, as every call asks.
func (s *stem) misfit(dev *Device, p flashkit.Problem) misfit {
	if m := s.mismatch(dev); m != none {
		return m
	}
	switch {
	case !slices.Contains(s.dtypes, p.DType):
		return otherDType
	case max(p.Dim, p.VDim) > s.widest():
		return wideHead
	case s.rows > 0 && p.Heads/p.KVHeads*p.QLen > s.rows:
		return manyRows
	case max(p.QLen, p.KVLen) > reach:
		return longSequence
	case blocks(p) > math.MaxInt32:
		return manyBlocks
	}
	return none
}

// mismatch returns why the stem is not for a device, whatever the problem.
func (s *stem) mismatch(dev *Device) misfit {
	switch arch := dev.Major*10 + dev.Minor; {
	case arch < s.arch:
		return oldDevice
	case s.hopper && arch > s.arch:
		return newDevice
	}
	return none
}

// missing returns the mismatch in words, "" for none.
func (s *stem) missing(dev *Device) string {
	switch s.mismatch(dev) {
	case oldDevice:
		return fmt.Sprintf("requires compute capability %d.%d; %s has %d.%d", s.arch/10, s.arch%10, dev.Name, dev.Major, dev.Minor)
	case newDevice:
		return fmt.Sprintf("supports compute capability %d.%d only; %s has %d.%d", s.arch/10, s.arch%10, dev.Name, dev.Major, dev.Minor)
	}
	return ""
}

// fits returns the misfit in words, "" for none.
func (s *stem) fits(dev *Device, p flashkit.Problem) string {
	switch s.misfit(dev, p) {
	case oldDevice, newDevice:
		return s.missing(dev)
	case otherDType:
		return fmt.Sprintf("supports %v, not %v", s.dtypes, p.DType)
	case wideHead:
		return fmt.Sprintf("supports head dims up to %d, not %d", s.widest(), max(p.Dim, p.VDim))
	case manyRows:
		return fmt.Sprintf("supports at most %d query rows per KV head, not %d", s.rows, p.Heads/p.KVHeads*p.QLen)
	case longSequence:
		return fmt.Sprintf("supports sequence lengths up to %d, not %d", reach, max(p.QLen, p.KVLen))
	case manyBlocks:
		return fmt.Sprintf("supports up to %d thread blocks, not %.0f", math.MaxInt32, blocks(p))
	}
	return ""
}

func (s *stem) widest() int { return s.dims[len(s.dims)-1] }

// blocks bounds the blocks of a launch, which are counted in 31 bits: no tile has
// less than 16 rows or keys.
func blocks(p flashkit.Problem) float64 {
	return float64(p.Batch) * float64(p.Heads) * float64(max(p.QLen, p.KVLen)/16+1)
}

// takes is what every kernel takes beyond dense attention in a band.
const takes = flashkit.FeatureShift

// Kernels returns the backend's kernels. They take host tensors and stream them
// through the device. Those of the zero Backend, which has no device, describe the
// kernels and fit nothing.
func (b *Backend) Kernels() []flashkit.Kernel {
	list := make([]flashkit.Kernel, 0, len(stems))
	for i := range stems {
		s := &stems[i]
		k := flashkit.Kernel{
			Name: "cuda/" + s.name, Pass: s.pass, Takes: takes,
			Missing: func() string { return s.missing(&b.dev) },
			Refuses: func(c *flashkit.Call) string { return s.fits(&b.dev, c.Problem) },
			Cost: func(c *flashkit.Call) time.Duration {
				return s.hostCost(&b.dev, c.Problem, cap(b.lanes.free))
			},
			Run: func(ctx context.Context, c *flashkit.Call) error { return b.runHost(ctx, stemID(i), c) },
		}
		setAbout(&k, stemID(i))
		k.Needs = func(c *flashkit.Call) (m flashkit.Memory) {
			if n, err := b.Workspace(c.Problem, s.pass, k.Name); err == nil {
				m.Tensors, m.Device = c.Bytes(s.pass), float64(n)
			}
			return m
		}
		list = append(list, k)
	}
	return list
}

// choose returns the stem of that name, or for "" the one that is predicted
// fastest among those that fit the problem and, unless a is nil, its tensors.
func (b *Backend) choose(name string, pass flashkit.Pass, p flashkit.Problem, a *params) (stemID, error) {
	if name != "" {
		if id := b.fastest(name, pass, p, a); id >= 0 {
			return id, nil
		}
		return -1, b.refusal(name, pass, p)
	}
	k := question{p, pass, a.isLoose(p), a == nil || a.isMappable(pass)}
	b.choices.mu.RLock()
	id, known := b.choices.made[k]
	b.choices.mu.RUnlock()
	if known {
		return id, nil
	}
	if id = b.fastest("", pass, p, a); id < 0 {
		return id, b.refusal("", pass, p)
	}
	b.choices.mu.Lock()
	defer b.choices.mu.Unlock()
	if b.choices.made == nil || len(b.choices.made) >= maxChoices {
		b.choices.made = map[question]stemID{}
	}
	b.choices.made[k] = id
	return id, nil
}

// choices remembers which stem is fastest, so that a call in a loop does not ask again.
type choices struct {
	mu   sync.RWMutex
	made map[question]stemID
}

// A question is what the choice depends on.
type question struct {
	p               flashkit.Problem
	pass            flashkit.Pass
	loose, mappable bool
}

// maxChoices bounds the memory of choices, which start anew beyond it.
const maxChoices = 1 << 12

// fastest returns the stem of that name, or any, that is predicted fastest among those
// that fit, or -1.
func (b *Backend) fastest(name string, pass flashkit.Pass, p flashkit.Problem, a *params) stemID {
	best, bestCost := stemID(-1), time.Duration(0)
	for i := range stems {
		s := &stems[i]
		if !s.named(name, pass) || s.misfit(&b.dev, p) != none || !s.describes(a) {
			continue
		}
		if cost := s.deviceCost(&b.dev, p, a.isLoose(p)); best < 0 || cost < bestCost {
			best, bestCost = stemID(i), cost
		}
	}
	return best
}

// describes reports whether the stem can reach the tensors: tensor maps want
// addresses and strides that are multiples of 16 bytes.
func (s *stem) describes(a *params) bool { return !s.hopper || a == nil || a.isMappable(s.pass) }

func (s *stem) named(name string, pass flashkit.Pass) bool {
	return s.pass == pass && (name == "" || name == "cuda/"+s.name)
}

// refusal says why no stem of that name, or of any, takes the problem.
func (b *Backend) refusal(name string, pass flashkit.Pass, p flashkit.Problem) error {
	var reasons []error
	for i := range stems {
		if s := &stems[i]; s.named(name, pass) {
			reason := s.fits(&b.dev, p)
			if reason == "" {
				reason = "addresses and strides of its tensors must be multiples of 16 bytes"
			}
			reasons = append(reasons, &flashkit.UnsupportedError{Kernel: "cuda/" + s.name, Problem: p, Reason: reason})
		}
	}
	if reasons == nil {
		return &flashkit.ProblemError{Field: "Kernel", Value: name, Reason: "is not a " + pass.String() + " kernel of cuda"}
	}
	return errors.Join(reasons...)
}

// isLoose reports whether rows of the tensors begin elsewhere than at multiples of 16
// bytes. Without tensors they are dense.
func (a *params) isLoose(p flashkit.Problem) bool {
	unit := rowAlignment / p.DType.Size()
	if a == nil {
		return p.Dim%unit != 0 || p.VDim%unit != 0
	}
	for i := range 4 {
		v := &a.views[i]
		if v.data%rowAlignment != 0 || v.row%int64(unit) != 0 || v.head%int64(unit) != 0 || v.batch%int64(unit) != 0 {
			return true
		}
	}
	return false
}
