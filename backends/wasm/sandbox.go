package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// kernelWasm is made from kernel.c beside it by make wasm.
//
//go:embed kernel/kernel.wasm
var kernelWasm []byte

// kernelSum holds the hashes of the module and of what it was made from.
//
//go:embed kernel/kernel.sum
var kernelSum []byte

type engine int

const (
	compiler engine = iota
	interpreter
)

// A sandbox is a module and its instances. The module gets nothing from the
// host: no function, no clock, no memory but its own.
type sandbox struct {
	engine  engine
	module  []byte
	runtime wazero.Runtime
	slots   chan struct{} // one token for each instance in use

	once sync.Once
	code wazero.CompiledModule
	err  error

	mu   sync.Mutex
	idle []*instance
}

// newSandbox returns a sandbox of up to n instances. It compiles nothing yet.
func newSandbox(ctx context.Context, module []byte, e engine, n int) (*sandbox, error) {
	s := &sandbox{engine: e, module: module, slots: make(chan struct{}, n)}
	config := wazero.NewRuntimeConfigInterpreter()
	if e == compiler {
		config = wazero.NewRuntimeConfigCompiler()
	}
	config = config.WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(maxMemory >> 16).WithDebugInfoEnabled(false)
	// Our own module makes short calls, and stopping it inside one would cost
	// most of its speed. Any other module is watched.
	sum := sha256.Sum256(module)
	config = config.WithCloseOnContextDone(!bytes.Contains(kernelSum, []byte(hex.EncodeToString(sum[:]))))
	err := recovered(func() { s.runtime = wazero.NewRuntimeWithConfig(ctx, config) })
	if err != nil && e == compiler { // no compiler for this platform, or no executable memory
		return newSandbox(ctx, module, interpreter, n)
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

func (s *sandbox) close() error { return s.runtime.Close(context.Background()) }

// compile compiles the module once and refuses one that is not of our making.
func (s *sandbox) compile(ctx context.Context) error {
	s.once.Do(func() {
		// The call that comes first compiles for all, so its context must not stop it.
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

// functions are the exports that take work, with the number of their arguments.
// Each returns a code.
func functions() map[string]int {
	all := map[string]int{"abi": 0}
	for _, v := range variants {
		all[v.keys], all[v.rows] = 3, 6
		if v.grads != "" {
			all[v.grads] = 3
		}
	}
	return all
}

// inspect refuses a module with imports, or with other functions than ours.
func inspect(code wazero.CompiledModule) error {
	if len(code.ImportedFunctions())+len(code.ImportedMemories()) > 0 {
		return errors.New("it has imports; it may have none")
	}
	have, want := code.ExportedFunctions(), functions()
	for name, n := range want {
		f, ok := have[name]
		if !ok || len(f.ParamTypes()) != n || len(f.ResultTypes()) != 1 {
			return fmt.Errorf("it has no function %s of %d arguments", name, n)
		}
		for _, t := range append(f.ParamTypes(), f.ResultTypes()...) {
			if t != api.ValueTypeI32 {
				return fmt.Errorf("its function %s takes or returns other than i32", name)
			}
		}
	}
	if len(have) != len(want) {
		return fmt.Errorf("it exports %d functions, want %d", len(have), len(want))
	}
	memory, ok := code.ExportedMemories()["memory"]
	if !ok || len(code.ExportedMemories()) != 1 {
		return errors.New("it must export one memory")
	}
	if pages, declared := memory.Max(); !declared || pages != maxMemory>>16 {
		return fmt.Errorf("its memory must declare a maximum of %d pages", maxMemory>>16)
	}
	return nil
}

// acquire returns an instance, waiting for one until ctx is done. The caller
// gives it back with release.
func (s *sandbox) acquire(ctx context.Context) (*instance, error) {
	select {
	case s.slots <- struct{}{}:
		return s.take(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// tryAcquire is acquire for one more instance: it returns nil rather than wait,
// or fail.
func (s *sandbox) tryAcquire(ctx context.Context) *instance {
	select {
	case s.slots <- struct{}{}:
		x, _ := s.take(ctx)
		return x
	default:
		return nil
	}
}

// take returns an idle instance or a new one. Its slot is taken already.
func (s *sandbox) take(ctx context.Context) (*instance, error) {
	s.mu.Lock()
	var x *instance
	if n := len(s.idle); n > 0 {
		x, s.idle = s.idle[n-1], s.idle[:n-1]
	}
	s.mu.Unlock()
	if x != nil {
		return x, nil
	}
	x, err := s.instantiate(ctx)
	if err != nil {
		<-s.slots
		return nil, err
	}
	return x, nil
}

// release takes an instance back, or drops it if it failed.
func (s *sandbox) release(x *instance) {
	if x.failed {
		x.module.Close(context.Background())
	} else {
		s.mu.Lock()
		s.idle = append(s.idle, x)
		s.mu.Unlock()
	}
	<-s.slots
}
