package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// kernelWasm is built from kernel.c and its headers by make wasm.
//
//go:embed kernel/kernel.wasm
var kernelWasm []byte

// kernelSum lists the SHA-256 hashes of the modules and of their sources.
//
//go:embed kernel/kernel.sum
var kernelSum []byte

type engine int

const (
	compiler engine = iota
	interpreter
)

// A sandbox is a module and its instances. The module has no imports: no host function, no clock, no
// memory but its own.
type sandbox struct {
	engine  engine
	module  []byte
	runtime wazero.Runtime
	slots   chan struct{} // one token for each instance in use

	once sync.Once
	code wazero.CompiledModule
	err  error

	limit  uint64 // bytes of memory for all instances
	mu     sync.Mutex
	idle   []*instance
	left   uint64        // unused bytes of limit
	freed  chan struct{} // closed when an instance is released; nil without waiters
	closed bool

	poisoned atomic.Bool // for tests: see Backend.Poison

	ending sync.Once
	ended  error
}

// newSandbox returns a sandbox of up to n instances with limit bytes in total. It does not compile
// the module.
func newSandbox(ctx context.Context, module []byte, e engine, n int, limit uint64) (*sandbox, error) {
	s := &sandbox{engine: e, module: module, slots: make(chan struct{}, n), limit: limit, left: limit}
	config := wazero.NewRuntimeConfigInterpreter()
	if e == compiler {
		config = wazero.NewRuntimeConfigCompiler()
	}
	config = config.WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(maxMemory >> 16).WithDebugInfoEnabled(false)
	// Calls of the embedded modules are short, and checks for cancellation inside a call would cost
	// most of the speed. Only other modules get these checks.
	sum := sha256.Sum256(module)
	config = config.WithCloseOnContextDone(!bytes.Contains(kernelSum, []byte(hex.EncodeToString(sum[:]))))
	err := recovered(func() { s.runtime = wazero.NewRuntimeWithConfig(ctx, config) })
	if err != nil && e == compiler { // no compiler for this platform, or no executable memory
		return newSandbox(ctx, module, interpreter, n, limit)
	}
	return s, err
}

// recovered calls f and turns a panic into an error.
func recovered(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("wazero: %v", r)
		}
	}()
	f()
	return nil
}

// close waits for the calls in progress, then frees the instances and the runtime.
func (s *sandbox) close() error {
	s.ending.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.wake()
		s.mu.Unlock()
		for range cap(s.slots) {
			s.slots <- struct{}{}
		}
		s.ended = s.runtime.Close(context.Background())
		s.mu.Lock()
		s.idle, s.left = nil, s.limit
		s.mu.Unlock()
		for range cap(s.slots) {
			<-s.slots
		}
	})
	return s.ended
}

// compile compiles the module once and refuses a module with another interface.
func (s *sandbox) compile(ctx context.Context) error {
	s.once.Do(func() {
		// The first call compiles for all calls, so its context must not stop the compilation.
		ctx := context.WithoutCancel(ctx)
		if panicked := recovered(func() { s.code, s.err = s.runtime.CompileModule(ctx, s.module) }); panicked != nil {
			s.err = panicked
		}
		if s.err == nil {
			s.err = inspect(s.code)
		}
		if s.err != nil {
			s.err = fmt.Errorf("kernel.wasm: %w", s.err)
		}
	})
	return s.err
}

// functions returns the required exports with their numbers of arguments. Each export returns an
// i32.
func functions() map[string]int {
	all := map[string]int{"abi": 0, listEntry: 2}
	for _, v := range variants {
		all[v.keys], all[v.rows] = 3, 6
		if v.grads != "" {
			all[v.grads] = 3
		}
		if v.featureRows != "" { // decode has one function for calls with and without features
			all[v.featureRows] = 6
		}
	}
	return all
}

// inspect refuses a module with imports, or with exports that differ from functions().
func inspect(code wazero.CompiledModule) error {
	if len(code.ImportedFunctions())+len(code.ImportedMemories()) > 0 {
		return errors.New("has imports; want none")
	}
	have, want := code.ExportedFunctions(), functions()
	for name, n := range want {
		f, ok := have[name]
		if !ok || len(f.ParamTypes()) != n || len(f.ResultTypes()) != 1 {
			return fmt.Errorf("no exported function %s with %d arguments", name, n)
		}
		for _, t := range append(f.ParamTypes(), f.ResultTypes()...) {
			if t != api.ValueTypeI32 {
				return fmt.Errorf("function %s must take and return i32 only", name)
			}
		}
	}
	if len(have) != len(want) {
		return fmt.Errorf("exports %d functions, want %d", len(have), len(want))
	}
	memory, ok := code.ExportedMemories()["memory"]
	if !ok || len(code.ExportedMemories()) != 1 {
		return errors.New("must export one memory")
	}
	if pages, declared := memory.Max(); !declared || pages != maxMemory>>16 {
		return fmt.Errorf("memory must declare a maximum of %d pages", maxMemory>>16)
	}
	return nil
}

// acquire returns an instance with at least n bytes, a multiple of the page size. It waits until an
// instance and its memory are free, or until ctx is done. The caller must release the instance.
func (s *sandbox) acquire(ctx context.Context, n uint64) (*instance, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		x, wait, err := s.take(ctx, n)
		if x != nil {
			return x, nil
		}
		if err == nil {
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		<-s.slots
		return nil, err
	}
}

// tryAcquire returns an instance as acquire does, or nil if acquire would wait or fail.
func (s *sandbox) tryAcquire(ctx context.Context, n uint64) *instance {
	select {
	case s.slots <- struct{}{}:
	default:
		return nil
	}
	x, _, _ := s.take(ctx, n)
	if x == nil {
		<-s.slots
	}
	return x
}

// take returns an idle instance with at least n bytes. If there is none, it drops smaller idle
// instances and makes a new instance. The caller holds a slot. If other calls use so much memory
// that the new instance does not fit, take returns a channel that closes when an instance is
// released.
func (s *sandbox) take(ctx context.Context, n uint64) (x *instance, wait <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, errors.New("wasm: the backend is closed")
	}
	if n > s.limit {
		return nil, nil, fmt.Errorf("kernel.wasm: requires %d bytes; the memory limit is %d", n, s.limit)
	}
	enough := func(x *instance) bool { return uint64(len(x.memory)) >= n }
	if i := slices.IndexFunc(s.idle, enough); i >= 0 {
		x = s.idle[i]
		s.idle = slices.Delete(s.idle, i, i+1)
		return x, nil, nil
	}
	scarce := s.left < n
	for first := true; len(s.idle) > 0 && (first || s.left < n); first = false {
		s.drop(s.idle[0])
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	if s.left < n {
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		return nil, s.freed, nil
	}
	s.left -= n
	s.mu.Unlock()
	if scarce {
		runtime.GC() // frees the memory of dropped instances before the new instance takes memory
	}
	x, err = s.instantiate(ctx, n)
	s.mu.Lock()
	if err != nil {
		s.left += n
		s.wake()
	}
	return x, nil, err
}

// drop closes an instance and adds its memory to s.left. The caller holds s.mu.
func (s *sandbox) drop(x *instance) {
	s.left += uint64(len(x.memory))
	x.module.Close(context.Background())
}

// wake wakes the calls that wait for memory. The caller holds s.mu.
func (s *sandbox) wake() {
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// release makes an instance idle, or drops an instance that failed.
func (s *sandbox) release(x *instance) {
	s.mu.Lock()
	if x.failed {
		s.drop(x)
	} else {
		s.idle = append(s.idle, x)
	}
	s.wake()
	s.mu.Unlock()
	<-s.slots
}
