package main

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// A line is a line of the plot: a function from sequence length to bytes.
type line struct {
	class, label string
	bytes        func(n int) float64
}

func problem(n int) flashkit.Problem {
	return flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: n, KVLen: n, Dim: 64, VDim: 64}
}

// elements returns the number of bytes of a float32 tensor of the given shape.
func elements(shape [4]int) float64 {
	return 4 * float64(shape[0]) * float64(shape[1]) * float64(shape[2]) * float64(shape[3])
}

// workspace returns a function that returns the workspace in bytes of the named simd kernel.
func workspace(name string) func(p flashkit.Problem) float64 {
	b := simd.New()
	defer b.Close()
	for _, k := range b.Kernels() {
		if k.Name == name {
			return func(p flashkit.Problem) float64 { return k.Needs(p.Ask(k.Pass)).Host }
		}
	}
	panic(name + " is not there")
}

// memory draws bytes of memory against sequence length, for both passes: stored matrices, the
// tensors, and LSE with the kernel's workspace.
func memory() *drawing {
	d := &drawing{title: "Bytes against sequence length: stored matrices grow with its square, LSE and a workspace of tiles stay below the tensors."}
	y := 18.
	for _, pass := range []struct {
		flashkit.Pass
		kernel, matrices string
		count            float64
	}{{flashkit.PassForward, "simd/fwd_generic", "S, P", 2}, {flashkit.PassBackward, "simd/bwd_generic", "S, P, dP, dS", 4}} {
		work := workspace(pass.kernel)
		d.bytes(y, pass.String()+", B 1, H 8, D 64, float32", []line{
			{"naive", pass.matrices, func(n int) float64 { return pass.count * 8 * 4 * float64(n) * float64(n) }},
			{"tensors", "tensors", func(n int) float64 { return problem(n).Bytes(pass.Pass) }},
			{"flash", "LSE, workspace", func(n int) float64 { return elements(problem(n).LSEShape()) + work(problem(n)) }},
		})
		y += 270
	}
	return d
}

func (d *drawing) bytes(y float64, title string, lines []line) {
	const (
		left, right      = 62., 270.
		high             = 200.
		from, to         = 9, 17  // log2 of the smallest and largest sequence length
		lowest, greatest = 16, 42 // log2 of the smallest and largest number of bytes
	)
	top := y + 14
	at := func(n int, bytes float64) (float64, float64) {
		return left + (right-left)*(math.Log2(float64(n))-from)/(to-from), top + high - high*(math.Log2(bytes)-lowest)/(greatest-lowest)
	}
	d.text("bold", 14, y, "%s", title)
	for e := lowest; e <= greatest; e += 4 {
		_, py := at(1<<from, math.Exp2(float64(e)))
		d.path("grid", left, py, right, py)
		d.text("dim end", left-6, py+4, "%s", size(math.Exp2(float64(e))))
	}
	for e := from; e <= to; e += 2 {
		px, _ := at(1<<e, 1)
		d.path("grid", px, top, px, top+high)
		d.text("dim mid", px, top+high+16, "%d", 1<<e)
	}
	d.text("dim end", right, top+high+31, "query rows and keys")
	for _, l := range lines {
		var points []float64
		for e := from; e <= to; e++ {
			x, py := at(1<<e, l.bytes(1<<e))
			points = append(points, x, py)
		}
		d.path(l.class, points...)
		end := points[len(points)-1]
		d.text("t"+l.class+" bold", right+8, end+4, "%s", size(l.bytes(1<<to)))
		d.text("dim", right+8, end+18, "%s", l.label)
	}
}

func size(bytes float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if bytes < 1000 {
			return fmt.Sprintf("%.3g %s", bytes, unit)
		}
		bytes /= 1024
	}
	return fmt.Sprintf("%.3g TiB", bytes)
}
