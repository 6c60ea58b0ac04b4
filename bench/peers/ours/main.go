// Command ours times calls of flashkit for the scripts of bench/peers. The scripts start this
// command once for each number of threads. The scripts alternate the command's measurements with
// measurements of other libraries.
//
// Requests and replies are lines of JSON on the standard input and output. A request's operation is
// "op":
//
//	open      make a cell, that is, the arguments of a pass of a problem, and call the cell once;
//	          reply with the number of the "cell"
//	time      call the cell for "seconds"; reply with the median and "least" times of a call in
//	          seconds; with "fresh" each call allocates its outputs
//	overhead  call the cell "calls" times, and run its kernel alone after or before each call; with
//	          "grow" each call has one key more in every sequence
//	read      measure the time to read K and V of a cell on all cores, without computing
//	save      write the outputs of a cell to a safetensors "file"
//	close     forget a cell
//
// The reply to a failed request has only "error".
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

// A request is a line of the input. Op determines the fields in use.
type request struct {
	Op   string
	Cell int // the number of the cell, for all operations but open

	Problem string            // problem name
	Pass    string            // fwd or bwd
	Kernel  string            // argument of dispatch.With; "" for dispatch's choice
	Hold    bool              // open: keep the kernel of the first call
	File    string            // open: inputs by lower-case argument name, else random. save: outputs
	Seed    uint64            // seed of random inputs and of dropout
	Lens    []int32           // sequence lengths of a ragged problem, for queries and keys
	KVLens  []int32           // key lengths of a ragged problem, if they are not Lens
	Packed  bool              // the sequences are packed, not padded
	Shapes  map[string][4]int // shapes of Bias and Mask, if they do not have all dimensions of the scores
	Hidden  float64           // fraction of a random Mask that is false
	Leave   []string          // optional arguments to omit
	Like    int               // open: number of the cell whose memory of K and V is used; 0 for none

	Seconds float64 // time, read: duration of the measurement
	Limit   float64 // most seconds: open: of the first call; overhead: of all calls
	Calls   int     // overhead
	Grow    bool    // overhead
	Fresh   bool    // time: each call allocates its outputs
}

// A reply is a line of the output.
type reply struct {
	Error    string  `json:"error,omitempty"`
	Cell     int     `json:"cell"`
	Kernel   string  `json:"kernel,omitempty"`   // kernel of the last observed call
	Seconds  float64 `json:"seconds"`            // time of a call: after open of the first call, else the median
	Least    float64 `json:"least,omitempty"`    // least time of a call in seconds
	Calls    int     `json:"calls,omitempty"`    // timed calls
	Pairs    int64   `json:"pairs,omitempty"`    // visible pairs of query rows and keys, in all heads
	Bytes    float64 `json:"bytes,omitempty"`    // bytes of K and V
	Overhead float64 `json:"overhead,omitempty"` // median of the seconds of a call through dispatch minus the seconds of its kernel
	Allocs   float64 `json:"allocs,omitempty"`   // allocations of a call through dispatch
}

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
		return c.time(ctx, r)
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
