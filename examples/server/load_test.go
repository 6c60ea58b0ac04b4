package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/admission"
)

// A witness is an attention that looks at its server at each call.
type witness struct {
	attention
	s     *Server
	calls atomic.Int64
	wrong atomic.Int64
}

func (w *witness) Forward(ctx context.Context, p flashkit.Problem, f *flashkit.Args) error {
	w.calls.Add(1)
	w.look()
	return w.attention.Forward(ctx, p, f)
}

// look counts violations.
func (w *witness) look() {
	now := w.s.State()
	if now.Bytes < 0 || now.Bytes > w.s.limits.Bytes || now.Admitted > w.s.limits.Requests || now.Unread < 0 {
		w.wrong.Add(1)
	}
}

// Many clients exceed the server's limits. Each request gets one answer, either the right numbers
// or one error. The server's counts match the clients', and in the end nothing remains.
func TestLoad(t *testing.T) {
	w := &witness{attention: cpu(t)}
	limits := roomy
	limits.Requests, limits.Bytes = 12, 6<<20
	s := start(t, w, limits)
	w.s = s
	samples := []*sample{answered(t, "b1-h4-g2-n1-m64-d32-f32"), answered(t, "b1-h4-g2-n1-m2000-d64-f32"),
		answered(t, "b1-h2-g1-n40-m70-d16-f32-causal"), answered(t, "b1-h2-g2-n300-m300-d32-f32")}
	c := online(t, s)
	const clients, each = 24, 25
	var mu sync.Mutex
	total := map[admission.Outcome]int{}
	saw := func(o admission.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		total[o]++
	}
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for range each {
				x := samples[rand.IntN(len(samples))]
				patience := []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, time.Minute}[rand.IntN(3)]
				body := x.body
				if rand.IntN(8) == 0 {
					body = body[4:]
				}
				asked := time.Now()
				o, err := c.attend(t.Context(), x.p, patience, body)
				var r *refusal
				switch {
				case errors.As(err, &r):
					saw(r.outcome())
				case err != nil && time.Since(asked) > patience:
					saw(admission.ErrMissed) // HTTP may lose the answer when a body is cut after the deadline
				case err != nil:
					t.Error(err)
				default:
					saw(admission.OK)
					if diff := x.differ(o); diff != "" {
						t.Error(diff)
					}
				}
				w.look()
			}
		})
	}
	group.Wait()
	t.Log(total, w.calls.Load(), "calls")
	require.Zero(t, w.wrong.Load())
	require.NotZero(t, total[admission.OK])
	require.NotZero(t, total[admission.ErrBad])
	agree(t, s, c, total, clients*each)
}

// agree drains a server, and checks its counts against the clients'.
func agree(t *testing.T, s *Server, c *client, total map[admission.Outcome]int, sent int) {
	sum := 0
	for o, n := range total {
		require.Contains(t, []admission.Outcome{admission.OK, admission.ErrBad, admission.ErrBusy, admission.ErrLate, admission.ErrMissed}, o)
		sum += n
	}
	require.Equal(t, sent, sum)
	require.NoError(t, s.Drain(t.Context()))
	settle(t, func() bool { text, _ := c.get(t, "/metrics"); return counted(text) == sum })
	text, _ := c.get(t, "/metrics")
	for _, o := range slices.Sorted(maps.Keys(admission.Statuses)) {
		require.Contains(t, text, fmt.Sprintf("attention_requests_total{outcome=%q} %d\n", o, total[o]))
	}
}

// counted returns the requests that a page of metrics counts.
func counted(text string) (sum int) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "attention_requests_total{") {
			n, _ := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]))
			sum += n
		}
	}
	return sum
}

// A crew is clients that send requests for one problem, one after another.
type crew struct {
	clients  int
	problem  string
	patience time.Duration
}

func decoders(clients, keys int, patience time.Duration) crew {
	return crew{clients, fmt.Sprintf("b1-h8-g2-n1-m%d-d64-f32", keys), patience}
}

// loads are the rows of README.md's table. The last crew is measured.
var loads = []struct {
	name  string
	crews []crew
}{
	{"1x1024,1s", []crew{decoders(1, 1024, time.Second)}},
	{"64x1024,5s", []crew{decoders(64, 1024, 5*time.Second)}},
	{"64x1024,20ms", []crew{decoders(64, 1024, 20*time.Millisecond)}},
	{"64x8192,20ms", []crew{decoders(64, 8192, 20*time.Millisecond)}},
	{"64x8192,200ms", []crew{decoders(64, 8192, 200*time.Millisecond)}},
	{"256x8192,5s", []crew{decoders(256, 8192, 5*time.Second)}},
	{"8x1024,100ms_beside_3x8192rows", []crew{{3, "b1-h8-g2-n8192-m8192-d64-f32", 30 * time.Second}, decoders(8, 1024, 100*time.Millisecond)}},
}

// BenchmarkLoad measures the clients' times for a few seconds each: over HTTP, with the server in a
// separate process, and within one process.
//
//	go test ./examples/server -run '^$' -bench Load -benchtime 1x
func BenchmarkLoad(b *testing.B) {
	for _, load := range loads {
		b.Run("http/"+load.name, func(b *testing.B) {
			server := newProcess(b)
			measure(b, load.crews, func(ctx context.Context, x *sample, patience time.Duration) error {
				_, err := server.attend(ctx, x.p, patience, x.body)
				var r *refusal
				if err != nil && !errors.As(err, &r) {
					return fmt.Errorf("%w: %w", admission.ErrMissed, err) // its body was cut
				}
				return err
			})
			b.ReportMetric(memory(server.Process.Pid), "RSS-MiB")
		})
		b.Run("inside/"+load.name, func(b *testing.B) {
			limits := roomy
			limits.Requests, limits.Bytes, limits.Copied, limits.Timeout = 256, 512<<20, 128<<10, 30*time.Second
			server := start(b, cpu(b), limits)
			measure(b, load.crews, func(ctx context.Context, x *sample, patience time.Duration) error {
				ctx, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				_, err := inProcess(ctx, server, x)
				return err
			})
		})
	}
}

func measure(b *testing.B, crews []crew, ask func(context.Context, *sample, time.Duration) error) {
	const span, pause = 4 * time.Second, 50 * time.Millisecond
	var mu sync.Mutex
	var times []time.Duration
	count := map[admission.Outcome]int{}
	var group sync.WaitGroup
	ctx, end := context.WithTimeout(b.Context(), span)
	defer end()
	for i, crew := range crews {
		x := newSample(b, crew.problem)
		for range crew.clients {
			group.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					err := ask(b.Context(), x, crew.patience)
					took := time.Since(began)
					o := admission.OK
					var r *refusal
					switch {
					case ctx.Err() != nil:
						continue
					case errors.As(err, &r):
						o = r.outcome()
					default:
						o = admission.Of(err)
					}
					if o != admission.OK {
						time.Sleep(pause) // who is refused does not ask again at once
					}
					mu.Lock()
					if i == len(crews)-1 {
						count[o]++
						if o == admission.OK {
							times = append(times, took)
						}
					}
					mu.Unlock()
				}
			})
		}
	}
	group.Wait()
	for _, o := range slices.Sorted(maps.Keys(admission.Statuses)) {
		if count[o] > 0 || o == admission.OK || o == admission.ErrMissed {
			b.ReportMetric(float64(count[o]), string(o))
		}
	}
	slices.Sort(times)
	for _, percent := range []int{50, 99} {
		if n := len(times); n > 0 {
			b.ReportMetric(float64(times[n*percent/100])/1e6, fmt.Sprintf("p%d-ms", percent))
		}
	}
	b.ReportMetric(0, "ns/op")
}
