package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// calibrateForward and calibrateBoth name the problems of flashrun calibrate. Calibrate measures
// each problem in every element type. Short problems come first. From their times, dispatch
// predicts the long calls of slow kernels, so that Calibrate can skip these calls. RegretGrid has
// none of these problems.
var (
	calibrateForward = []string{
		"b1-h8-g8-n1-m128-d64-f32", "b1-h8-g2-n1-m128-d128-f32",
		"b1-h8-g8-n1-m1024-d128-f32", "b4-h8-g2-n1-m1024-d64-f32",
		"b1-h8-g8-n1-m8192-d64-f32", "b1-h8-g2-n1-m8192-d128-f32",
		"b8-h8-g2-n1-m8192-d128-f32",
	}
	calibrateBoth = []string{
		"b1-h1-g1-n4-m4-d32-f32", "b1-h8-g8-n16-m16-d64-f32", "b1-h8-g8-n16-m16-d128-f32-causal",
		"b32-h8-g8-n16-m16-d64-f32", "b1-h8-g8-n8-m256-d64-f32", "b2-h8-g8-n24-m400-d64-f32", "b1-h8-g2-n8-m2048-d128-f32-causal",
		"b1-h8-g8-n64-m64-d64-f32", "b1-h8-g2-n64-m64-d128-f32-causal", "b32-h8-g8-n64-m64-d64-f32",
		"b1-h4-g4-n256-m256-d64-f32", "b1-h4-g4-n256-m256-d128-f32-causal", "b2-h4-g2-n256-m256-d64-f32-causal",
		"b1-h4-g4-n512-m512-d128-f32", "b1-h4-g4-n512-m512-d192-f32-causal",
		"b1-h4-g2-n1024-m1024-d64-f32-causal", "b1-h4-g4-n1024-m1024-d64-f32", "b1-h1-g1-n2048-m2048-d128-f32",
		"b1-h4-g4-n4096-m4096-d64-f32-causal",
	}
)

// CalibrateGrid returns the problems of flashrun calibrate.
func CalibrateGrid() []Heat {
	return append(heats(calibrateForward, flashkit.PassForward), heats(calibrateBoth, flashkit.PassForward, flashkit.PassBackward)...)
}

// A Calibration is the output of flashrun calibrate. The JSON names are stable.
type Calibration struct {
	Profile string             `json:"profile"`
	Seconds float64            `json:"seconds"` // duration of the calibration
	Machine machine.Info       `json:"machine"`
	Kernels []calibratedKernel `json:"kernels"`
}

// A calibratedKernel compares the measured times of a kernel with the kernel's own predictions.
// Problems is the number of compared problems.
type calibratedKernel struct {
	Kernel   string  `json:"kernel"`
	Problems int     `json:"problems"`
	Least    float64 `json:"least"` // lowest ratio of measured to predicted time
	Median   float64 `json:"median"`
	Most     float64 `json:"most"`
}

// Calibrate times the kernels on each problem, each kernel for about the time per. It passes the
// kernels' median times to d.Learn.
func Calibrate(ctx context.Context, d *dispatch.Dispatcher, list []Heat, per time.Duration, show *terminal.Progress) error {
	r := &race{dispatch: d.Frozen(), kernels: d.Kernels(), slice: per / raceRounds, rounds: raceRounds, order: rand.New(rand.NewPCG(1, 1))}
	return r.each(ctx, list, show, func(data *input.Tensors, s flashkit.Pass, racers []*racer) error {
		for _, x := range racers {
			if len(x.times) == 0 {
				continue
			}
			if err := d.Learn(x.kernel.Name, data.Problem, time.Duration(x.seconds()*1e9)); err != nil {
				return err
			}
		}
		return nil
	})
}

// NewCalibration summarizes the times that d has learned for the problems. path is d's profile.
func NewCalibration(d *dispatch.Dispatcher, list []Heat, path string, took time.Duration) *Calibration {
	c := &Calibration{Profile: path, Seconds: took.Seconds(), Machine: machine.Describe(d, nil)}
	own := d.Blank().Kernels()
	for i, k := range d.Kernels() {
		var off []float64
		for _, h := range list {
			if !slices.Contains(h.passes, k.Pass) || k.Fits(h.problem.Ask(k.Pass)) != "" {
				continue
			}
			if itself := own[i].Cost(h.problem.Ask(k.Pass)); itself > 0 {
				off = append(off, float64(k.Cost(h.problem.Ask(k.Pass)))/float64(itself))
			}
		}
		if len(off) > 0 {
			slices.Sort(off)
			c.Kernels = append(c.Kernels, calibratedKernel{k.Name, len(off), off[0], Quantile(off, .5), off[len(off)-1]})
		}
	}
	return c
}

// WriteTable prints a line for each kernel.
func (c *Calibration) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(terminal.Writer(w))
	fmt.Fprintf(out, "machine: %s\n\n", c.Machine)
	rows := [][]string{{"time over the kernel's own prediction", "problems", "least", "median", "most"}}
	round := func(x float64) string { return fmt.Sprint(math.Round(x*100) / 100) }
	for _, k := range c.Kernels {
		rows = append(rows, []string{k.Kernel, fmt.Sprint(k.Problems), round(k.Least), round(k.Median), round(k.Most)})
	}
	terminal.WriteTable(out, rows, 1)
	fmt.Fprintf(out, "\nwritten to %s after %s\n", c.Profile, time.Duration(c.Seconds*1e9).Round(time.Second))
	return out.Flush()
}
