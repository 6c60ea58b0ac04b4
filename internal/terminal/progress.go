package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A Progress shows the progress of a long run on a terminal. It is silent for the first second. It
// is always silent if the writer is no terminal.
type Progress struct {
	w       *os.File // nil if silent
	mu      sync.Mutex
	text    string
	expect  time.Duration
	started time.Time
	share   float64       // completed fraction, shown as a bar
	left    time.Duration // predicted remaining time when the text was set; 0 without a bar
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

// Start shows a kernel and the expected time of a call.
func (p *Progress) Start(kernel string, expect time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.expect, p.started, p.share, p.left = kernel, expect, time.Now(), 0, 0
}

// Part shows the completed fraction of a long run, the current part and the expected remaining
// time.
func (p *Progress) Part(share float64, text string, left time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.expect, p.started, p.share, p.left = text, 0, time.Now(), share, max(1, left)
}

// CountCalls shows the number of timed calls, and their total if known.
func (p *Progress) CountCalls(n, of int) {
	if of == 0 {
		p.Say(fmt.Sprintf("%d calls", n))
	} else {
		p.Say(fmt.Sprintf("%d of %d calls", n, of))
	}
}

// Say replaces the text and restarts the clock.
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

// cut shortens a line to width, because the progress cannot clear a line that the terminal wraps.
func cut(line string, width int) string {
	if r := []rune(line); len(r) > width {
		return string(r[:max(0, width)])
	}
	return line
}

// line returns the line to show. passed is the time since the text was set.
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
