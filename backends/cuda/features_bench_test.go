//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// featureForms are the suffixes that BenchmarkFeatures adds to a problem's name.
var featureForms = []string{"", "-sink", "-alibi", "-softcap30", "-mask", "-bias", "-dropout0.1", "-carry", "-ragged", "-ragged-page1", "-ragged-page16", "-ragged-page64"}

// BenchmarkFeatures times the cost of features: each kernel that supports a problem with one,
// relative to the fastest kernel and to the same kernel without. FLASHKIT_BENCH names the problems
// without features.
func BenchmarkFeatures(b *testing.B) {
	gpu := benchGPU(b)
	for _, name := range gpuProblems("b1-h32-g32-n4096-m4096-d64-bf16", "b1-h16-g16-n4096-m4096-d128-bf16", "b16-h32-g8-n1-m8192-d128-bf16") {
		for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
			plain := map[familyID]float64{}
			least := 0.
			for _, form := range featureForms {
				p := problem(b, name+form)
				if pass == flashkit.PassBackward && (p.Features()&flashkit.ForwardFeatures != 0 || p.QLen < 16) {
					continue
				}
				c := newDeviceCall(b, gpu, p.String())
				layOut(c)
				require.NoError(b, c.forward())
				ids, chosen := c.candidates(b, pass)
				call := c.forward
				if pass == flashkit.PassBackward {
					call = c.backward
				}
				for _, id := range ids {
					c.use("cuda/"+families[id].name, pass)
					ms := deviceMedian(b, c, call)
					if form == "" {
						plain[id] = ms
						if least == 0 || ms < least {
							least = ms
						}
					}
					mark := ""
					if id == chosen {
						mark = " chosen"
					}
					same := 0.
					if plain[id] > 0 {
						same = ms / plain[id]
					}
					fmt.Printf("%-52s %-9v %-12s %9.4f ms %6.2f of it plain, %6.2f of the best plain%s\n", p, pass, families[id].name, ms, same, ms/least, mark)
				}
				c.close(b)
			}
		}
	}
}

// layOut makes the sequences of a ragged problem full ones: packed, or of pages in a
// random order.
func layOut(c *deviceCall) {
	s := c.args.Seqs
	if s == nil {
		return
	}
	if c.p.Page > 0 {
		rand.Shuffle(len(s.Pages), func(i, j int) { s.Pages[i], s.Pages[j] = s.Pages[j], s.Pages[i] })
		return
	}
	starts := func(n int) (list []int32) {
		for i := range c.p.Batch + 1 {
			list = append(list, int32(i*n))
		}
		return list
	}
	*s = flashkit.Sequences{QStarts: starts(c.p.QLen), KVStarts: starts(c.p.KVLen)}
	for _, a := range allArguments {
		x := a.Of(&c.args)
		if x.IsZero() || !slices.Contains(strings.Fields("Q K V O LSE DO DQ DK DV"), a.Name) {
			continue
		}
		n := x.Shape()
		*x = buffer(*x).Tensor(x.DType(), 0, 1, n[1], n[0]*n[2], n[3])
	}
}
