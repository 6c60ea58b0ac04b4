// Command overhead calls the library from Go, in several rounds. It prints the mean time of a call
// in the fastest round, in nanoseconds. tests/overhead.c measures the same calls from C.
//
//	overhead HEADS ROWS DIM CALLS
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

func main() {
	var n [4]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(os.Args[i+1]); err != nil {
			log.Fatal(err)
		}
	}
	heads, rows, dim, calls := n[0], n[1], n[2], n[3]
	ctx, size := context.Background(), heads*rows*dim
	d, err := dispatch.All(ctx).With("simd")
	if err != nil {
		log.Fatal(err)
	}
	d = d.Blank().Frozen()
	view := func() flashkit.Tensor { return flashkit.F32(make([]float32, size), 1, heads, rows, dim) }
	args := &flashkit.Args{Q: view(), K: view(), V: view(), O: view()}
	p := flashkit.ProblemOf(args, flashkit.Band{})
	least := time.Duration(1<<63 - 1)
	for range 40 {
		start := time.Now()
		for range calls {
			if err := d.Forward(ctx, p, args); err != nil {
				log.Fatal(err)
			}
		}
		least = min(least, time.Since(start)/time.Duration(calls))
	}
	fmt.Println(least.Nanoseconds())
}
