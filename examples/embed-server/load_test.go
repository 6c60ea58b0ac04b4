package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/admission"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// phrase returns n random words.
func phrase(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = []string{"the", "a", "cat", "dog", "sleeps", "runs", "black", "small", "house", "tree"}[rand.IntN(10)]
	}
	return strings.Join(words, " ")
}

// A tally counts requests by outcome, as clients saw them.
type tally struct {
	sync.Mutex
	count map[admission.Outcome]int
	slow  int             // answers after the deadline
	times []time.Duration // of answers
}

// add counts an answer that came after the time took.
func (y *tally) add(status int, text []byte, took, patience time.Duration) {
	o := admission.OK
	if status != http.StatusOK {
		var f failure
		json.Unmarshal(text, &f)
		o = admission.Outcome(f.Error.Code)
	}
	y.Lock()
	defer y.Unlock()
	y.count[o]++
	if o != admission.OK {
		return
	}
	y.times = append(y.times, took)
	if took > patience {
		y.slow++
	}
}

// stalls returns a function that ends the watch and returns the longest time for which the machine
// did not run a goroutine that was ready.
func stalls() func() time.Duration {
	const nap = 10 * time.Millisecond
	ended, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for {
			start := time.Now()
			select {
			case <-ended:
				longest <- most
				return
			case <-time.After(nap):
				most = max(most, time.Since(start)-nap)
			}
		}
	}()
	return func() time.Duration { close(ended); return <-longest }
}

// 64 clients ask for more than the server can do. It keeps the deadline of 99 % of the requests that
// it admits, and each answer has the right numbers. The counts of the server and of the clients
// agree, and in the end nothing remains.
func TestLoad(t *testing.T) {
	const clients = 64
	span := 6 * time.Second
	if testing.Short() {
		span = 2 * time.Second
	}
	f := &fake{dim: 8, perCall: time.Millisecond, perToken: 60 * time.Microsecond}
	m := &model{textEncoder: f, id: "small", fixed: 1e-3, rows: []row{{1000, 60e-3}}}
	limits := roomy
	limits.Timeout = 5 * time.Second
	s := NewServer(m, nil, limits)
	c := online(t, s)
	y := tally{count: map[admission.Outcome]int{}}
	var sent atomic.Int64
	var group sync.WaitGroup
	watch := stalls()
	until := time.Now().Add(span)
	for i := range clients {
		patience := []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second}[i%3]
		group.Go(func() {
			for time.Now().Before(until) {
				texts := []string{phrase(1 + rand.IntN(50)), phrase(1 + rand.IntN(200))}[:1+rand.IntN(2)]
				body := `{"model":"small","input":` + quote(texts...) + `}`
				if rand.IntN(20) == 0 {
					body = body[:len(body)-1]
				}
				sent.Add(1)
				asked := time.Now()
				status, text, err := c.post(t.Context(), onEmbeddings, body, patience)
				if err != nil {
					t.Error(err)
					return
				}
				y.add(status, text, time.Since(asked), patience)
				switch status {
				case http.StatusOK:
					if diff := f.differ(text, texts); diff != "" {
						t.Error(diff)
					}
				case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
					time.Sleep(20 * time.Millisecond) // who is refused does not ask again at once
				}
			}
		})
	}
	group.Wait()
	stall := watch()
	t.Log(y.count, y.slow, "after the deadline; the machine stalled for", stall)
	require.NotZero(t, y.count[admission.OK])
	require.NotZero(t, y.count[admission.ErrBad])
	require.NotZero(t, y.count[admission.ErrLate])
	agree(t, s, c, y.count, int(sent.Load()))
	missed, admitted := y.count[admission.ErrMissed], y.count[admission.OK]+y.count[admission.ErrMissed]
	if !slow.Race { // with the race detector, the test's clients are slower than the server
		missed += y.slow
	}
	if 100*missed > admitted && stall > 100*time.Millisecond {
		t.Skipf("the machine stalled for %v", stall)
	}
	require.LessOrEqual(t, 100*missed, admitted, "deadlines missed, of %d requests admitted", admitted)
}

// differ returns how an answer differs from the vectors of texts, or "".
func (f *fake) differ(answer []byte, texts []string) string {
	var a embeddings
	if err := json.Unmarshal(answer, &a); err != nil {
		return err.Error()
	}
	if len(a.Data) != len(texts) {
		return fmt.Sprintf("%d vectors of %d texts", len(a.Data), len(texts))
	}
	for i, x := range a.Data {
		var v []float32
		if err := json.Unmarshal(x.Embedding, &v); err != nil || !slices.Equal(v, f.vector(texts[i])) {
			return fmt.Sprintf("%v: %s", err, x.Embedding)
		}
	}
	return ""
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
	require.Equal(t, admission.State{Draining: true}, s.State())
	settle(t, func() bool { text, _ := c.get(t, "/metrics"); return counted(text) == sum })
	text, _ := c.get(t, "/metrics")
	for _, o := range slices.Sorted(maps.Keys(admission.Statuses)) {
		require.Contains(t, text, fmt.Sprintf("embed_requests_total{outcome=%q} %d\n", o, total[o]))
	}
}

// counted returns the requests that a page of metrics counts.
func counted(text string) (sum int) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "embed_requests_total{") {
			n, _ := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]))
			sum += n
		}
	}
	return sum
}

// A crew is clients that send requests of equal size, one after another.
type crew struct {
	clients, texts, words int
	patience              time.Duration
}

// loads are the rows of README.md's table. The last crew is measured.
var loads = []struct {
	name  string
	crews []crew
}{
	{"1_client_1x16,1s", []crew{{1, 1, 16, time.Second}}},
	{"64_clients_1x16,100ms", []crew{{64, 1, 16, 100 * time.Millisecond}}},
	{"64_clients_1x16,1s", []crew{{64, 1, 16, time.Second}}},
	{"64_clients_8x100,1s", []crew{{64, 8, 100, time.Second}}},
	{"64_clients_8x100,10s", []crew{{64, 8, 100, 10 * time.Second}}},
	{"16_clients_1x16,200ms_beside_3_of_64x200", []crew{{3, 64, 200, 30 * time.Second}, {16, 1, 16, 200 * time.Millisecond}}},
}

// BenchmarkLoad measures the clients' times for a few seconds each. The server is a process of its
// own, with the model in the folder that the variable MODEL names.
//
//	MODEL=folder go test ./examples/embed-server -run '^$' -bench Load -benchtime 1x
func BenchmarkLoad(b *testing.B) {
	folder := os.Getenv("MODEL")
	if folder == "" {
		b.Skip("MODEL names no folder")
	}
	for _, load := range loads {
		b.Run(load.name, func(b *testing.B) {
			p := newProcess(b, "-model "+folder)
			const span, pause = 5 * time.Second, 200 * time.Millisecond
			ctx, end := context.WithTimeout(b.Context(), span)
			defer end()
			var group sync.WaitGroup
			for i, crew := range load.crews {
				y := &tally{count: map[admission.Outcome]int{}}
				for range crew.clients {
					group.Go(func() { crew.work(ctx, p.client, name(folder), y, pause) })
				}
				if i == len(load.crews)-1 {
					defer y.report(b)
				}
			}
			group.Wait()
			b.ReportMetric(memory(p.Process.Pid), "RSS-MiB")
		})
	}
}

// work sends requests until ctx ends.
func (c *crew) work(ctx context.Context, to *client, model string, y *tally, pause time.Duration) {
	for ctx.Err() == nil {
		texts := make([]string, c.texts)
		for i := range texts {
			texts[i] = phrase(c.words)
		}
		body := fmt.Sprintf(`{"model":%q,"encoding_format":"base64","input":%s}`, model, quote(texts...))
		asked := time.Now()
		status, text, err := to.post(context.WithoutCancel(ctx), onEmbeddings, body, c.patience)
		if err != nil || ctx.Err() != nil {
			continue
		}
		y.add(status, text, time.Since(asked), c.patience)
		if status != http.StatusOK {
			time.Sleep(pause)
		}
	}
}

func (y *tally) report(b *testing.B) {
	for _, o := range slices.Sorted(maps.Keys(admission.Statuses)) {
		if y.count[o] > 0 || o == admission.OK || o == admission.ErrMissed {
			b.ReportMetric(float64(y.count[o]), string(o))
		}
	}
	b.ReportMetric(float64(y.slow), "after-deadline")
	slices.Sort(y.times)
	for _, percent := range []int{50, 99} {
		if n := len(y.times); n > 0 {
			b.ReportMetric(float64(y.times[n*percent/100])/1e6, fmt.Sprintf("p%d-ms", percent))
		}
	}
	b.ReportMetric(0, "ns/op")
}
