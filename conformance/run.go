package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Options choose what to run. The zero value runs everything, with no sweep.
type Options struct {
	Kernel string // only kernels whose full name matches this pattern (package path); "" for all
	Case   string // only cases whose full name matches; a name sweep-<seed>, sweep-features-<seed>, sweep-tiny-<seed> or sweep-wide-<seed> runs that sweep case
	Sweep  int    // number of random problems for each kernel, of such with features, of tiny ones with features, and of wide ones
	Seed   uint64 // of the sweep and of Budget
	Brief  bool   // of the grid, the shapes and the long cases what a backend's kernels share, each a third; of the traps in layouts of sequences a sixth

	// Budget is how long more random problems are drawn after all other cases, as many for
	// each kernel. Run has none, and Case leaves it out unless it names a sweep.
	Budget time.Duration

	// Backends are the backends of the kernels. What they offer beside kernels is used: see Run.
	Backends []flashkit.Backend

	parts int // that gradients of the sweep's problems are added up from
}

// A Result is the outcome of one case on one kernel.
type Result struct {
	Kernel  string // full name
	Case    string // full name: the trap or grid problem, with -f16 or -bf16 for the other types
	Catches string // the mistake that the case is about, in words; "" where there are many
	Err     error  // nil if it passed; an errors.ErrUnsupported if the kernel does not take it, or is not held to it
}

// Unsupported reports whether the kernel does not take the case, or is not held to it.
func (r Result) Unsupported() bool { return errors.Is(r.Err, errors.ErrUnsupported) }

// A question is one named check of a kernel.
type question struct {
	name    string
	catches string // the mistake that it is about, "" for many
	run     func(ctx context.Context, k flashkit.Kernel) error
	needs   flashkit.Feature // it is not asked of kernels that do not take these: Takes says as much
	forward bool             // it is not asked of backward kernels
	turn    int              // above 0: only every third kernel of a backend is asked
	slow    bool             // under the race detector, where it tells nothing that a faster question does not
}

// of reports whether the question is asked of a kernel, the i-th of its backend.
func (q *question) of(k *flashkit.Kernel, i int) bool {
	return q.needs&^k.Takes == 0 && !(q.forward && k.Pass == flashkit.PassBackward) && (q.turn == 0 || (q.turn+i)%3 == 0)
}

// checks returns what o asks of every kernel.
func (o Options) checks() []question {
	all := []question{
		{name: "invalid_arguments", run: invalidArguments, slow: true},
	}
	ask := func(c Case, turn int, slow bool) {
		all = append(all, question{name: c.FullName(), catches: c.Catches, run: c.Check, needs: c.features(), turn: turn, slow: slow})
	}
	traps := Traps()
	for i, c := range slices.Concat(traps, Long(), Grid(), Shapes()) {
		for j, t := range c.types() {
			turn := 0
			if o.Brief && i >= len(traps) && !c.brief {
				turn = 1 + (i+j)%3
			}
			ask(c.InDType(t), turn, i >= len(traps))
		}
	}
	for i, c := range traps {
		for j, c := range c.storages() {
			if c.mixed && (!o.Brief || (i+j)%2 == 0) {
				ask(c, 0, false)
			}
			for l, c := range c.raggeds() {
				if !o.Brief || (i+2*j+l)%6 == 0 {
					ask(c, 0, c.layout != packed)
				}
			}
		}
	}
	for _, c := range leftovers() {
		for _, t := range dtypes {
			ask(c.InDType(t), 0, false)
		}
	}
	all = append(append(all, o.conduct()...), farQuestions()...)
	r := rand.New(rand.NewPCG(o.Seed, 1))
	for kind := range sweepKinds {
		for range o.Sweep {
			all = append(all, sweepCase{r.Uint64(), kind, o.parts}.question())
		}
	}
	if s, ok := parseSweep(o.Case); ok {
		s.parts = o.parts
		return []question{s.question()}
	}
	return slices.DeleteFunc(all, func(c question) bool { return !matches(o.Case, c.name) })
}

func (o Options) choose(kernels []flashkit.Kernel) []flashkit.Kernel {
	return slices.DeleteFunc(slices.Clone(kernels), func(k flashkit.Kernel) bool { return !matches(o.Kernel, k.Name) })
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == "" || ok && err == nil
}

// Validate returns an error if a pattern is malformed.
func (o Options) Validate() error {
	for _, p := range []string{o.Kernel, o.Case} {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	return nil
}

// questions returns what o asks of a kernel: of all that is asked, what is asked of it,
// and what is asked of it beside the others.
func (o Options) questions(all []question, k flashkit.Kernel, kernels []flashkit.Kernel) (list []question) {
	i := slices.IndexFunc(kernels, func(other flashkit.Kernel) bool { return other.Name == k.Name })
	for _, c := range slices.Concat(all, mixed(k, kernels), o.promised(k)) {
		if c.of(&k, i) && (matches(o.Case, c.name) || strings.HasPrefix(c.name, sweepPrefix)) {
			list = append(list, c)
		}
	}
	return list
}

// Count returns how many results Results will give for the kernels, but for those of Budget.
func (o Options) Count(kernels []flashkit.Kernel) int {
	n, checks := 0, o.checks()
	for _, k := range o.choose(kernels) {
		n += len(o.questions(checks, k, kernels))
	}
	return n
}

// Results runs every chosen case on every chosen kernel, as many at a time as Go uses
// processors, and gives the results in order, until ctx is done. The random problems of
// Budget come last, of all kernels in turns. It returns when all
// that it has begun has ended.
func Results(ctx context.Context, kernels []flashkit.Kernel, o Options) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		pending := make(chan chan Result, runtime.GOMAXPROCS(0)-1)
		running.Go(func() {
			defer close(pending)
			o.each(kernels, func(k flashkit.Kernel, c *question) bool {
				r := make(chan Result, 1)
				select {
				case pending <- r:
				case <-ctx.Done():
					return false
				}
				running.Go(func() { r <- Result{k.Name, c.name, c.catches, c.run(ctx, k)} })
				return true
			})
		})
		for r := range pending {
			if r := <-r; ctx.Err() != nil || !yield(r) {
				return
			}
		}
	}
}

// each calls ask with what each kernel is asked, until it returns false: first all that Count counts, kernel by
// kernel, then random problems, one after the other, of all kernels, until Budget is over.
func (o Options) each(kernels []flashkit.Kernel, ask func(k flashkit.Kernel, c *question) bool) {
	checks, kernels := o.checks(), o.poisoned(kernels)
	chosen := o.choose(kernels)
	for _, k := range chosen {
		for _, c := range o.questions(checks, k, kernels) {
			if !ask(k, &c) {
				return
			}
		}
	}
	if _, one := parseSweep(o.Case); one || len(chosen) == 0 || o.Case != "" && !strings.HasPrefix(o.Case, "sweep") {
		return
	}
	r := rand.New(rand.NewPCG(o.Seed, 2))
	for begun, n := time.Now(), 0; time.Since(begun) < o.Budget; n++ {
		c := sweepCase{r.Uint64(), sweepKind(n) % sweepKinds, o.parts}.question()
		for i := range chosen {
			if c.of(&chosen[i], 0) && matches(o.Case, c.name) && !ask(chosen[i], &c) {
				return
			}
		}
	}
}

// Caught runs the trap or long case of that name in every type on the kernels and returns the
// first failure, or nil if they survive. A kernel that does not take the trap
// is not caught by it.
func Caught(ctx context.Context, kernels []flashkit.Kernel, trap string) error {
	for _, c := range slices.Concat(Traps(), Long()) {
		if c.Name != trap {
			continue
		}
		for _, t := range c.types() {
			for r := range Results(ctx, kernels, Options{Case: c.InDType(t).FullName()}) {
				if r.Err != nil && !r.Unsupported() {
					return r.Err
				}
			}
		}
	}
	return nil
}

// Run tests a backend: every kernel, every case, in subtests named
// kernel/case, and that each kernel's description is there and agrees with Fits.
// A kernel that takes no case at all is skipped, unless
// FLASHKIT_REQUIRE names it. With -short it is brief, see [Options], and the sweep has
// 4 random problems of each kind, else 40; FLASHKIT_SWEEP sets another number, FLASHKIT_SEED the seed.
// Under the race detector, -short also skips the grid, long sums, layouts other than packed, and
// kernels after each other, unless FLASHKIT_SLOW is 1.
//
// A backend with a method Parts() int has kernels that add up gradients from so many
// parts at most, each rounded to the type of the problem, as ranks that share a sequence
// do. The bounds of random problems have that rounding too. See [Poisoner] and
// [BatchInvariant] for what else a backend may offer.
func Run(t *testing.T, b flashkit.Backend) {
	o := Options{Sweep: envInt(t, "FLASHKIT_SWEEP", 40), Seed: uint64(envInt(t, "FLASHKIT_SEED", int(rand.Uint32())))}
	if testing.Short() {
		o.Sweep, o.Brief = min(o.Sweep, 4), true
	}
	if x, ok := b.(interface{ Parts() int }); ok {
		o.parts = x.Parts()
	}
	o.Backends = []flashkit.Backend{b}
	checks := o.checks()
	var took []string
	kernels := o.poisoned(b.Kernels())
	for _, k := range kernels {
		t.Run(strings.TrimPrefix(k.Name, b.Name()+"/"), func(t *testing.T) {
			if err := describes(k); err != nil {
				t.Error(err)
			}
			passed, unsupported := 0, 0
			for _, c := range o.questions(checks, k, kernels) {
				t.Run(c.name, func(t *testing.T) {
					if c.slow {
						slow.UnderRace(t)
					}
					r := Result{k.Name, c.name, c.catches, c.run(t.Context(), k)}
					switch {
					case r.Unsupported():
						unsupported++
						t.Skip(r.Err)
					case r.Err != nil:
						t.Errorf("%v\n%srerun: %s", r.Err, r.caught(), o.rerun(t, r))
					default:
						passed++
					}
				})
			}
			t.Logf("%d passed, %d unsupported, %d cases, sweep seed %d", passed, unsupported, len(checks), o.Seed)
			if passed > 0 {
				took = append(took, k.Name)
			}
		})
	}
	for _, name := range Required(b.Name()) {
		if !slices.Contains(took, name) {
			t.Errorf("FLASHKIT_REQUIRE names %s, but it passed no case on this machine", name)
		}
	}
}

// Unavailable is called instead of Run when a backend could not be opened. It
// skips the test, or fails it when FLASHKIT_REQUIRE names one of its kernels.
func Unavailable(t testing.TB, backend string, err error) {
	t.Helper()
	if names := Required(backend); len(names) > 0 {
		t.Fatalf("FLASHKIT_REQUIRE names %s, but: %v", strings.Join(names, ", "), err)
	}
	t.Skip(err)
}

// Required returns the kernels that FLASHKIT_REQUIRE names, a list of full names
// with commas: those that this machine is obliged to have. A backend other than
// "" leaves out those of the other backends.
func Required(backend string) []string {
	var names []string
	for name := range strings.SplitSeq(os.Getenv("FLASHKIT_REQUIRE"), ",") {
		name = strings.TrimSpace(name)
		if owner, _, _ := strings.Cut(name, "/"); name != "" && (backend == "" || backend == owner) {
			names = append(names, name)
		}
	}
	return names
}

func envInt(t *testing.T, name string, otherwise int) int {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q: want a number, 0 or more", name, s)
	}
	return n
}
