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

// Options select the cases and kernels to run. The zero value runs all cases but random problems,
// on all kernels.
type Options struct {
	Kernel string // pattern of full kernel names, in the syntax of path.Match; "" for all
	Case   string // pattern of full case names; the name of a random problem runs this problem: sweep-<seed>, sweep-features-<seed>, sweep-tiny-<seed> or sweep-wide-<seed>; in sweep-*ranges-*, all random problems have this parameter
	Sweep  int    // number of random problems of each kind: dense, with features, tiny with features, wide
	Seed   uint64 // seed of the random problems
	Brief  bool   // each kernel runs fewer cases: a third of the grid, shape and long cases, half of the traps with K and V of another type, a sixth of the traps in layouts of sequences

	// Budget is the time for further random problems after all other cases. Every kernel runs each of
	// these problems. If Case is set, these problems run only if Case begins with sweep. Run ignores
	// Budget.
	Budget time.Duration

	// Backends are the backends of the kernels. The suite uses their optional methods: see Run.
	Backends []flashkit.Backend

	parts int // number of parts from which gradients of random problems are summed: see Run
}

// A Result is the outcome of one case on one kernel.
type Result struct {
	Kernel  string // full name of the kernel
	Case    string // full name of the case: the trap or problem, followed by -f16 or -bf16 for these types, and the layout
	Catches string // the mistake that the case catches, in words; "" if it may catch many
	Err     error  // nil if the kernel passed; matches errors.ErrUnsupported if it does not support the case or is exempt
}

// Unsupported reports whether the kernel does not support the case or is exempt from it.
func (r Result) Unsupported() bool { return errors.Is(r.Err, errors.ErrUnsupported) }

// A kernelCheck is a named check of a kernel.
type kernelCheck struct {
	name    string
	catches string // the mistake that the check catches, "" if it may catch many
	run     func(ctx context.Context, k flashkit.Kernel) error
	needs   flashkit.Feature // features that a kernel must have in Takes
	forward bool             // the check applies to forward kernels only
	turn    int              // 0, or one of 1, 2 and 3; then only a third of a backend's kernels run the check
	slow    bool             // short runs under the race detector skip the check, as faster checks find the same races
}

// of reports whether the check applies to kernel k, which has index i among the kernels.
func (q *kernelCheck) of(k *flashkit.Kernel, i int) bool {
	return q.needs&^k.Takes == 0 && !(q.forward && k.Pass == flashkit.PassBackward) && (q.turn == 0 || (q.turn+i)%3 == 0)
}

// checks returns the checks selected by o. The list is the same for every kernel.
func (o Options) checks() []kernelCheck {
	all := []kernelCheck{
		{name: "invalid_arguments", run: invalidArguments, slow: true},
	}
	ask := func(c Case, turn int, slow bool) {
		all = append(all, kernelCheck{name: c.FullName(), catches: c.Catches, run: c.Check, needs: c.features(), turn: turn, slow: slow})
	}
	// The names of a case in other types and layouts begin with the case's name.
	named := func(c Case) bool {
		return strings.ContainsAny(o.Case, `*?[\`) || o.Case == "" || strings.HasPrefix(o.Case, c.Name)
	}
	traps := Traps()
	for i, c := range slices.Concat(traps, Long(), Grid(), Shapes()) {
		if !named(c) {
			continue
		}
		for j, t := range c.types() {
			turn := 0
			if o.Brief && i >= len(traps) && !c.brief {
				turn = 1 + (i+j)%3
			}
			ask(c.InDType(t), turn, i >= len(traps))
		}
	}
	for i, c := range traps {
		if !named(c) {
			continue
		}
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
	all = append(append(all, o.conduct()...), farChecks()...)
	r := rand.New(rand.NewPCG(o.Seed, 1))
	for kind := range sweepKinds {
		for range o.Sweep {
			all = append(all, sweepCase{r.Uint64(), kind, o.parts, sweptWith(o.Case)}.kernelCheck())
		}
	}
	if s, ok := parseSweep(o.Case); ok {
		s.parts = o.parts
		return []kernelCheck{s.kernelCheck()}
	}
	return slices.DeleteFunc(all, func(c kernelCheck) bool { return !matches(o.Case, c.name) })
}

func (o Options) choose(kernels []flashkit.Kernel) []flashkit.Kernel {
	return slices.DeleteFunc(slices.Clone(kernels), func(k flashkit.Kernel) bool { return !matches(o.Kernel, k.Name) })
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == "" || ok && err == nil
}

// Validate returns an error if a pattern of Kernel or Case is malformed.
func (o Options) Validate() error {
	for _, p := range []string{o.Kernel, o.Case} {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	return nil
}

// kernelChecks returns the checks for k: the checks in all that apply to k, the checks that mixed
// returns, and the checks of the promises that k's backend makes.
func (o Options) kernelChecks(all []kernelCheck, k flashkit.Kernel, kernels []flashkit.Kernel) (list []kernelCheck) {
	i := slices.IndexFunc(kernels, func(other flashkit.Kernel) bool { return other.Name == k.Name })
	for _, c := range slices.Concat(all, mixed(k, kernels), o.promised(k)) {
		if c.of(&k, i) && (matches(o.Case, c.name) || strings.HasPrefix(c.name, sweepPrefix)) {
			list = append(list, c)
		}
	}
	return list
}

// Count returns the number of results that Results returns for the kernels, without the random
// problems of Budget.
func (o Options) Count(kernels []flashkit.Kernel) int {
	n, checks := 0, o.checks()
	for _, k := range o.choose(kernels) {
		n += len(o.kernelChecks(checks, k, kernels))
	}
	return n
}

// Results returns the results of every chosen case on every chosen kernel, in order. The cases run
// while the caller iterates over the results, until ctx is done. At most GOMAXPROCS cases run
// concurrently. The random problems of Budget come last, each on all kernels. When the iteration
// ends, no check is running.
func Results(ctx context.Context, kernels []flashkit.Kernel, o Options) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		pending := make(chan chan Result, runtime.GOMAXPROCS(0)-1)
		running.Go(func() {
			defer close(pending)
			o.each(kernels, func(k flashkit.Kernel, c *kernelCheck) bool {
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

// each calls ask for each kernel and check until ask returns false. The checks that Count counts
// come first, kernel by kernel. Then follow the random problems of Budget, each on all kernels.
func (o Options) each(kernels []flashkit.Kernel, ask func(k flashkit.Kernel, c *kernelCheck) bool) {
	checks, kernels := o.checks(), o.poisoned(kernels)
	chosen := o.choose(kernels)
	for _, k := range chosen {
		for _, c := range o.kernelChecks(checks, k, kernels) {
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
		c := sweepCase{r.Uint64(), sweepKind(n) % sweepKinds, o.parts, sweptWith(o.Case)}.kernelCheck()
		for i := range chosen {
			if c.of(&chosen[i], 0) && matches(o.Case, c.name) && !ask(chosen[i], &c) {
				return
			}
		}
	}
}

// Caught returns the first failure of the kernels on the trap or long case with the given name, in
// any of the case's types. It returns nil if no kernel fails or the name is unknown. Kernels that
// do not support the case are skipped.
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

// Run tests all kernels of a backend on all cases, in subtests named kernel/case. It also tests
// that Fits agrees with each kernel's limits. A kernel that supports no case is skipped, unless
// FLASHKIT_REQUIRE names it. There are 40 random problems of each kind; FLASHKIT_SWEEP sets another
// number, FLASHKIT_SEED the seed.
//
// With -short, Run sets Brief of [Options], and runs at most 4 random problems of each kind. Under
// the race detector, -short also skips the grid, long sums, layouts other than packed, and pairs of
// kernels, unless FLASHKIT_SLOW is 1.
//
// A backend whose ranks share a sequence may have a method Parts() int. Parts returns the largest
// number of parts from which a gradient is summed. Each part is rounded to the problem's type
// before the sum. The bounds of random problems then include this rounding. [Poisoner] and
// [BatchInvariant] are further optional methods.
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
			for _, c := range o.kernelChecks(checks, k, kernels) {
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

// A test calls Unavailable instead of Run if the backend could not be opened. Unavailable skips the
// test, or fails it if FLASHKIT_REQUIRE names a kernel of the backend.
func Unavailable(t testing.TB, backend string, err error) {
	t.Helper()
	if names := Required(backend); len(names) > 0 {
		t.Fatalf("FLASHKIT_REQUIRE names %s, but: %v", strings.Join(names, ", "), err)
	}
	t.Skip(err)
}

// Required returns the full names of kernels in FLASHKIT_REQUIRE, a comma-separated list of kernels
// that this machine must run. If backend is not "", only this backend's kernels are returned.
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
