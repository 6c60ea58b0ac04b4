package main

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// sequences returns the sequences of a ragged problem, or nil if r does not have a length for each
// sequence. A page table has the pages in random order.
func sequences(p *flashkit.Problem, r *request) *flashkit.Sequences {
	kvLens := r.KVLens
	if kvLens == nil {
		kvLens = r.Lens
	}
	if len(kvLens) != p.Batch || r.Lens != nil && len(r.Lens) != p.Batch || r.Packed && r.Lens == nil {
		return nil
	}
	s := new(flashkit.Sequences)
	switch {
	case p.Page > 0:
		s.KVLens = slices.Clone(kvLens)
		s.Pages = make([]int32, p.Batch*pages(p))
		for i, page := range rand.New(rand.NewPCG(r.Seed, 1)).Perm(len(s.Pages)) {
			s.Pages[i] = int32(page)
		}
	case r.Packed:
		s.QStarts, s.KVStarts = starts(r.Lens), starts(kvLens)
	default:
		s.QLens, s.KVLens = slices.Clone(r.Lens), slices.Clone(kvLens)
	}
	return s
}

func pages(p *flashkit.Problem) int { return (p.KVLen + p.Page - 1) / p.Page }

func starts(lens []int32) []int32 {
	list := make([]int32, 1, len(lens)+1)
	for _, n := range lens {
		list = append(list, list[len(list)-1]+n)
	}
	return list
}

// shape returns the shape of an argument's tensor in memory. With packed or paged sequences this
// shape differs from the shape in the problem. r.Shapes overrides the result.
func shape(p *flashkit.Problem, a *flashkit.Argument, r *request) [4]int {
	s := a.Shape(p)
	if given, ok := r.Shapes[a.Name]; ok {
		return given
	}
	keys := slices.Contains([]string{"K", "V", "DK", "DV"}, a.Name)
	rows := slices.Contains([]string{"Q", "O", "LSE", "RowMax", "DO", "DLSE", "DQ"}, a.Name)
	kvLens := r.KVLens
	if kvLens == nil {
		kvLens = r.Lens
	}
	switch {
	case a.Name == "Slopes":
		s[0] = 1
	case keys && p.Page > 0:
		s[0], s[2] = p.Batch*pages(p), p.Page
	case keys && r.Packed:
		s[0], s[2] = 1, sum(kvLens)
	case rows && r.Packed:
		s[0], s[2] = 1, sum(r.Lens)
	}
	return s
}

func sum(lens []int32) (n int) {
	for _, x := range lens {
		n += int(x)
	}
	return n
}

// fill fills a tensor. Slopes get ALiBi's slopes, a mask gets random elements, and other tensors
// get normally distributed numbers. In a mask, a fraction r.Hidden of the elements is false.
func fill(t *flashkit.Tensor, name string, r *request) {
	if name == "Slopes" {
		for h, slopes := 0, t.Float32s(); h < len(slopes); h++ {
			slopes[h] = float32(math.Exp2(-8 * float64(h+1) / float64(len(slopes))))
		}
		return
	}
	const piece = 1 << 16
	var wait sync.WaitGroup
	next := make(chan int, t.Len()/piece+1)
	for at := 0; at < t.Len(); at += piece {
		next <- at
	}
	close(next)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for at := range next {
				draw(t, at, min(at+piece, t.Len()), rand.New(rand.NewPCG(r.Seed^uint64(at), uint64(name[0])<<8|uint64(len(name)))), r.Hidden)
			}
		})
	}
	wait.Wait()
}

func draw(t *flashkit.Tensor, from, to int, r *rand.Rand, hidden float64) {
	if x := t.Bools(); x != nil {
		for i := from; i < to; i++ {
			x[i] = r.Float64() >= hidden
		}
		return
	}
	if x := t.Int8s(); x != nil {
		for i := range x[from:to] {
			x[from+i] = int8(r.IntN(255) - 127)
		}
		return
	}
	wide := make([]float32, to-from)
	for i := range wide {
		wide[i] = float32(r.NormFloat64())
	}
	switch t.DType() {
	case flashkit.Float16:
		copy(t.Uint16s()[from:to], flashkit.ToF16(wide))
	case flashkit.BFloat16:
		copy(t.Uint16s()[from:to], flashkit.ToBF16(wide))
	default:
		copy(t.Float32s()[from:to], wide)
	}
}
