package admission

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An estimate follows samples, up sooner than down, and is forgotten.
func TestEstimate(t *testing.T) {
	e := estimate{normal: 1, most: 32}
	now := time.Now()
	require.Equal(t, 1.0, e.at(now))
	e.learn(9, now)
	require.Equal(t, 5.0, e.at(now))
	e.learn(1, now)
	require.Equal(t, 4.5, e.at(now))
	require.Equal(t, 2.75, e.at(now.Add(time.Second)))
	e.learn(1e9, now.Add(time.Hour))
	require.Equal(t, 16.5, e.at(now.Add(time.Hour)))
}

// A lane admits by learned pace and expected arrivals.
func TestPace(t *testing.T) {
	l, now := newLane[task, int](&sync.Mutex{}), time.Now()
	due := now.Add(2 * time.Millisecond)
	x := &Ticket[task, int]{cost: time.Millisecond, deadline: due, due: due}
	require.True(t, l.admits(x, now))
	l.pace.learn(9, now)
	require.False(t, l.admits(x, now))
	l.pace = estimate{normal: 1}
	l.busy, l.free = true, now.Add(500*time.Microsecond)
	require.True(t, l.admits(x, now))
	l.free = due
	require.False(t, l.admits(x, now))
	l.busy, x.readable = false, due
	require.False(t, l.admits(x, now))
}

// Concurrent bodies share the bandwidth. Small bodies and idle times are not measured.
func TestArrivals(t *testing.T) {
	const mega = 4 << 20
	a := arrivals{slowness: estimate{most: 100}}
	now := time.Now()
	require.Equal(t, now, a.expect(100*mega, now), "nothing is known")
	require.Zero(t, a.add(1000, now))
	require.EqualValues(t, 2*mega, a.add(2*mega, now))
	require.EqualValues(t, 4*mega, a.add(4*mega, now))
	now = now.Add(mega * 4)
	a.arrived(mega, now)
	require.Equal(t, 2.0, a.slowness.at(now))
	require.Equal(t, now.Add(2*(5+3)*mega), a.expect(3*mega, now))
	require.Equal(t, now, a.expect(3, now))
	a.arrived(5*mega, now.Add(time.Second))
	require.Zero(t, a.unread)
	now = now.Add(time.Hour)
	require.Zero(t, a.slowness.at(now))
	a.add(mega, now)
	now = now.Add(mega * 4)
	a.arrived(mega, now)
	require.Equal(t, 2.0, a.slowness.at(now), "an idle hour tells nothing")
	a.add(mega, now)
	now = now.Add(time.Hour)
	a.arrived(mega, now)
	require.Equal(t, 50.0, a.slowness.at(now), "of the most")
}

// An outcome is found in any error, and a text of a stranger fits a line.
func TestOutcomesAndLines(t *testing.T) {
	require.Equal(t, OK, Of(nil))
	require.Equal(t, ErrFailed, Of(errors.New("x")))
	require.Equal(t, ErrLate, Of(fmt.Errorf("a: %w", fmt.Errorf("%w: %w", ErrLate, errors.New("b")))))
	require.Equal(t, "a  b", Line(errors.New("a\n\x00b")))
	require.Len(t, Line(errors.New(strings.Repeat("ä", 1000))), 300+len("..."))
}
