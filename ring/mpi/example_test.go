package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
)

// A rank of mpiexec -n 4 computes its rows of a sequence.
func Example() {
	if status, watched := mpi.Watch(os.Stderr); watched {
		os.Exit(status)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	g, err := mpi.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	d := dispatch.All(ctx)
	r, err := ring.New(g, d, ring.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, _ := flashkit.ParseProblem("b1-h8-g2-n10000-m10000-d64-f32-causal")
	cut, _ := ring.NewCut(p, nil, g.Size(), false)
	shard, _ := cut.Shard(g.Rank(), flashkit.NewArgs(p, flashkit.PassForward))
	err = r.Forward(ctx, p, shard)
	err = errors.Join(err, r.Close(), d.Close())
	if err = errors.Join(err, g.Close()); err != nil {
		fmt.Println(err)
		os.Exit(1) // which ends the other ranks
	}
}

// Without MPI a program may compute in one process.
func ExampleOpen() {
	defer os.Setenv("FLASHKIT_MPI", os.Getenv("FLASHKIT_MPI"))
	os.Setenv("FLASHKIT_MPI", "/nowhere/libmpi_abi.so.1") // as on a machine without MPI
	_, err := mpi.Open(context.Background())
	if errors.Is(err, mpi.ErrNoMPI) {
		fmt.Println("computing alone")
	}
	// Output: computing alone
}

// The program of a rank begins with Watch, so that the rank that died is named.
func ExampleWatch() {
	if status, watched := mpi.Watch(os.Stderr); watched {
		os.Exit(status)
	}
	fmt.Println("the program of this rank")
}

// Rank 0 alone writes results.
func ExampleGroup_Rank() {
	g, err := mpi.Open(context.Background())
	if err != nil {
		return
	}
	if g.Rank() == 0 {
		fmt.Println("the results of", g.Size(), "ranks")
	}
}

// Each rank takes its part of the files.
func ExampleGroup_Size() {
	g, err := mpi.Open(context.Background())
	if err != nil {
		return
	}
	files := []string{"a", "b", "c", "d", "e"}
	for i := g.Rank(); i < len(files); i += g.Size() {
		fmt.Println(files[i])
	}
}

// A log says which library a rank runs on.
func ExampleGroup_Library() {
	g, err := mpi.Open(context.Background())
	if err != nil {
		return
	}
	fmt.Println("rank", g.Rank(), "runs on", g.Library())
}

// The ranks agree on the longest of their sequences, in thousands of tokens.
func ExampleGroup_Gather() {
	g, err := mpi.Open(context.Background())
	if err != nil {
		return
	}
	mine, all := []byte{12}, make([]byte, g.Size())
	if err := g.Gather(context.Background(), mine, all); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	longest := byte(0)
	for _, n := range all {
		longest = max(longest, n)
	}
	fmt.Println(longest)
}

// Close is the last call of a program, after Rings and dispatchers are closed.
func ExampleGroup_Close() {
	g, err := mpi.Open(context.Background())
	if err != nil {
		return
	}
	if err := g.Close(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
