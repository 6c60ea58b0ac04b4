//go:build !(linux && (amd64 || arm64)) || nocuda

package mpi

import (
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// library stands for MPI, which this build lacks.
type library struct{ name string }

func load(string) (*library, error) { return nil, ErrNoMPI }

func (g *Group) thread(begun chan<- error) { begun <- ErrNoMPI }

type exchange struct {
	done         chan error
	stop, urgent atomic.Bool
}

func (l *library) newExchange() *exchange                { return &exchange{done: make(chan error, 1)} }
func (x *exchange) gather(_, _ []byte) error             { return ErrNoMPI }
func (x *exchange) add(bool, int, flashkit.Tensor) error { return ErrNoMPI }
func (x *exchange) free()                                {}
func (x *exchange) watch()                               { x.done <- ErrNoMPI }
