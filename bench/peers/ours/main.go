// Command ours times calls of flashkit for the scripts of bench/peers, which run it
// once for each number of threads and ask it in turns with other libraries.
//
// Requests and replies are lines of JSON on the standard input and output. A request
// names an operation, "op":
//
//	open      make the arguments of a pass of a problem, call it once; reply with "cell", its number
//	time      call the cell for so many "seconds", reply with the seconds of each call's median
//	overhead  call it "calls" times through dispatch and through its kernel alone, in turns; with "grow" each
//	          time with a key more in every sequence
//	read      time reading K and V of a cell on all cores, and doing nothing else
//	save      write the outputs of a cell to a safetensors "file"
//	close     forget a cell
//
// A reply to what cannot be done has "error" and nothing else.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/flashkit-go/flashkit/dispatch"
)

// A request is one line of the input; which fields count depends on Op.
type request struct {
	Op   string
	Cell int // but for open

	Problem string            // its name
	Pass    string            // fwd or bwd
	Kernel  string            // as dispatch.With takes it; "" for what dispatch chooses
	Hold    bool              // open: stay with the kernel of the first call, whatever dispatch learns
	File    string            // open: inputs, under the lower-case names of their arguments, random without it. save: outputs
	Seed    uint64            // of random inputs, and of dropout
	Lens    []int32           // of the sequences of a ragged problem, queries and keys alike
	KVLens  []int32           // of the keys, where they differ from Lens
	Packed  bool              // and not padded
	Shapes  map[string][4]int // of Bias and Mask where they are not full
	Hidden  float64           // how much of a random Mask is false
	Leave   []string          // optional arguments to leave out
	Like    int               // open: a cell whose memory K and V lie in, which has as many elements; 0 for memory of its own

	Seconds float64 // time, read: so long
	Limit   float64 // open: of the first call; overhead: of all
	Calls   int     // overhead
	Grow    bool    // overhead
}

// A reply is one line of the output.
type reply struct {
	Error    string  `json:"error,omitempty"`
	Cell     int     `json:"cell"`
	Kernel   string  `json:"kernel,omitempty"`   // that ran last
	Seconds  float64 `json:"seconds"`            // of a call: the first one's after open, else the median
	Calls    int     `json:"calls,omitempty"`    // that were timed
	Pairs    int64   `json:"pairs,omitempty"`    // of query rows and keys that meet, in all heads
	Bytes    float64 `json:"bytes,omitempty"`    // of K and V
	Overhead float64 `json:"overhead,omitempty"` // seconds of a call through dispatch beyond the kernel's, the median
	Allocs   float64 `json:"allocs,omitempty"`   // of a call through dispatch
}

// A server holds the cells that are open.
type server struct {
	d     *dispatch.Dispatcher
	cells map[int]*cell
	next  int
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "ours:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s := &server{d: d, cells: map[int]*cell{}}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for in.More() {
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		answer, err := s.answer(ctx, &r)
		if err != nil {
			answer = reply{Error: err.Error()}
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) answer(ctx context.Context, r *request) (reply, error) {
	if r.Op == "open" {
		c, a, err := open(ctx, s.d, r, s.cells[r.Like])
		if err != nil {
			return a, err
		}
		s.next++
		s.cells[s.next], a.Cell = c, s.next
		return a, nil
	}
	c := s.cells[r.Cell]
	if c == nil {
		return reply{}, fmt.Errorf("cell %d is not open", r.Cell)
	}
	switch r.Op {
	case "time":
		return c.time(ctx, r.Seconds)
	case "overhead":
		return c.overhead(ctx, r)
	case "read":
		return c.read(r.Seconds), nil
	case "save":
		return reply{}, c.save(r.File)
	case "close":
		delete(s.cells, r.Cell)
		return reply{}, nil
	}
	return reply{}, fmt.Errorf("op %q: there is none such", r.Op)
}
