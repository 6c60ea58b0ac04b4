// Server is the loop of a batch server: clients ask for attention over sequences
// of their own, each with a deadline; requests for the same problem share a call,
// few calls run at the same time, and a full queue says so at once. The clients
// are goroutines here, where a real server has a network.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

func main() {
	if err := serve(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// serve runs a server for 24 clients that decode, one of which has no time left.
func serve(ctx context.Context, w io.Writer) error {
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	server := NewServer(d, Limits{Calls: 2, Queue: 64, Batch: 8, Wait: 2 * time.Millisecond, Timeout: 10 * time.Second})
	running, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { server.Run(running) })

	var clients sync.WaitGroup
	errs := make([]error, 24)
	for i := range errs {
		clients.Go(func() {
			patience := time.Minute
			if i == 7 {
				patience = 0
			}
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			keys := 256 * (1 + i%3) // three problems, so at least three calls
			_, errs[i] = server.Attend(ctx, decode(keys, uint64(i)))
		})
	}
	clients.Wait()
	stop()
	work.Wait()

	answered := 0
	for i, err := range errs {
		switch {
		case err == nil:
			answered++
		case errors.Is(err, context.DeadlineExceeded):
			fmt.Fprintf(w, "client %d had no time left\n", i)
		default:
			return err
		}
	}
	fmt.Fprintf(w, "%d clients were answered\n", answered)
	_, err = server.Attend(ctx, decode(256, 0))
	fmt.Fprintln(w, "afterwards:", err)
	return nil
}

// decode returns a request of one new row that sees all the keys so far.
func decode(keys int, seed uint64) Request {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1, KVLen: keys, Dim: 64, VDim: 64}
	r := rand.New(rand.NewPCG(seed, 0))
	random := func(s [4]int) []float32 {
		x := make([]float32, size(s))
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	return Request{p, random(p.QShape()), random(p.KShape()), random(p.VShape())}
}
