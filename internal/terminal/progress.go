package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A Progress shows on a terminal what a long run is doing. It stays silent for
// the first second, and altogether when the writer is no terminal.
type Progress struct {
	w       *os.File // nil for silence
	mu      sync.Mutex
	text    string
	expect  time.Duration
	started time.Time
	share   float64       // of a long run that is done, shown as a bar
	left    time.Duration // of it, as predicted when the text was set; 0 without a bar
	stop    chan struct{}
	ended   sync.WaitGroup
}

// NewProgress returns a progress on w.
func NewProgress(w io.Writer) *Progress {
	p := &Progress{stop: make(chan struct{})}
	if f, ok := w.(*os.File); ok && columns(f) > 0 {
		p.w = f
		p.ended.Add(1)
		go p.loop()
	}
	return p
}

// Start says that a kernel begins and how long one call is expected to take.
func (p *Progress) Start(kernel string, expect time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.expect, p.started, p.share, p.left = kernel, expect, time.Now(), 0, 0
}

// Part says how much of a long run is done, what comes now, and how long all the
// rest is expected to take.
func (p *Progress) Part(share float64, text string, left time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.expect, p.started, p.share, p.left = text, 0, time.Now(), share, max(1, left)
}

// CountCalls says how many timed calls are done, of how many if that is known.
func (p *Progress) CountCalls(n, of int) {
	if of == 0 {
		p.Say(fmt.Sprintf("%d calls", n))
	} else {
		p.Say(fmt.Sprintf("%d of %d calls", n, of))
	}
}

// Say replaces the text and starts the clock again.
func (p *Progress) Say(text string) { p.Start(text, 0) }

func (p *Progress) loop() {
	defer p.ended.Done()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	begin, shown := time.Now(), false
	for {
		select {
		case <-p.stop:
			if shown {
				fmt.Fprint(p.w, "\r\x1b[K")
			}
			return
		case <-tick.C:
			if time.Since(begin) < time.Second {
				continue
			}
			shown = true
			p.mu.Lock()
			fmt.Fprintf(p.w, "\r\x1b[K%s", cut(p.line(time.Since(p.started)), columns(p.w)-1))
			p.mu.Unlock()
		}
	}
}

// cut shortens a line to what fits beside the cursor of the terminal: a line that
// wraps could not be cleared.
func cut(line string, width int) string {
	if r := []rune(line); len(r) > width {
		return string(r[:max(0, width)])
	}
	return line
}

// line returns what to show when that much time has passed since the text was set.
func (p *Progress) line(passed time.Duration) string {
	if p.left == 0 {
		return fmt.Sprintf("%s, %s%s", p.text, passed.Round(100*time.Millisecond), p.remaining())
	}
	const width = 20
	full := int(p.share * width)
	bar := strings.Repeat("#", full) + strings.Repeat(".", width-full)
	return fmt.Sprintf("[%s] %.0f%%, about %s left, %s", bar, 100*p.share, max(0, p.left-passed).Round(time.Second), p.text)
}

func (p *Progress) remaining() string {
	if p.expect == 0 {
		return ""
	}
	return fmt.Sprintf(" of about %s", p.expect.Round(100*time.Millisecond))
}

// Done ends the display and clears its line. It may be called twice.
func (p *Progress) Done() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.ended.Wait()
}
