//go:build !purego

package simd

import (
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// BenchmarkDecode measures the decode kernels with K and V in memory. After each call, a loop reads
// the same bytes on the same number of cores, without computing. %read is the kernel's median rate
// as a percentage of the loop's median rate. FLASHKIT_BENCH replaces the problems by others. It
// lists names of problems, separated by commas.
func BenchmarkDecode(b *testing.B) {
	backend, read := New(), readPeakAVX2
	if avx512.has {
		read = readPeakAVX512
	}
	names := []string{
		"b1-h32-g8-n1-m32768-d128-f32", "b1-h32-g8-n1-m131072-d128-f32",
		"b1-h32-g8-n1-m32768-d128-bf16", "b1-h32-g8-n1-m131072-d128-bf16",
		"b1-h32-g8-n1-m32768-d128-f16", "b1-h8-g8-n1-m32768-d128-f32", "b1-h64-g8-n2-m32768-d128-f32",
		"b1-h32-g8-n1-m32768-d128-f32-kvbf16", "b1-h32-g8-n1-m32768-d128-f32-kvf16",
	}
	if list := os.Getenv("FLASHKIT_BENCH"); list != "" {
		names = strings.Split(list, ",")
	}
	for _, name := range names {
		p, err := flashkit.ParseProblem(name)
		require.NoError(b, err)
		f, memory := decodeCall(p)
		for _, k := range backend.Kernels() {
			if !strings.HasPrefix(k.Name, "simd/decode_") {
				continue
			}
			b.Run(k.Name+"/"+name, func(b *testing.B) {
				if reason := k.Fits(p.Ask(k.Pass)); reason != "" {
					b.Skip(reason)
				}
				var ours, reading []float64
				b.ReportAllocs()
				for b.Loop() {
					start := time.Now()
					require.NoError(b, k.Compute(b.Context(), p, f))
					ours = append(ours, time.Since(start).Seconds())
					b.StopTimer()
					start = time.Now()
					readAll(read, memory)
					reading = append(reading, time.Since(start).Seconds())
					b.StartTimer()
				}
				slices.Sort(ours)
				slices.Sort(reading)
				median := len(ours) / 2
				b.ReportMetric(float64(len(memory))/ours[median]/1e9, "GB/s")
				b.ReportMetric(100*reading[median]/ours[median], "%read")
			})
		}
	}
}

// decodeCall returns arguments for p and the memory of K and V.
func decodeCall(p flashkit.Problem) (f *flashkit.Args, memory []byte) {
	k := p.Batch * p.KVHeads * p.KVLen * p.Dim
	words := make([]uint32, (k+k/p.Dim*p.VDim)*p.KVType().Size()/4)
	for i := range words {
		words[i] = 0x3c003c00 + uint32(i)*0x00110007&0x81ff81ff // small numbers of both signs in every type
	}
	memory = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*4)
	tensor := func(s [4]int, in []byte, t flashkit.DType) flashkit.Tensor {
		n := s[0] * s[1] * s[2] * s[3]
		if in == nil {
			in = make([]byte, n*t.Size())
		}
		switch t {
		case flashkit.Float16:
			return flashkit.F16(unsafe.Slice((*uint16)(unsafe.Pointer(&in[0])), n), s[0], s[1], s[2], s[3])
		case flashkit.BFloat16:
			return flashkit.BF16(unsafe.Slice((*uint16)(unsafe.Pointer(&in[0])), n), s[0], s[1], s[2], s[3])
		}
		return flashkit.F32(unsafe.Slice((*float32)(unsafe.Pointer(&in[0])), n), s[0], s[1], s[2], s[3])
	}
	return &flashkit.Args{
		Q: tensor(p.QShape(), nil, p.DType), O: tensor(p.OShape(), nil, p.DType),
		K: tensor(p.KShape(), memory, p.KVType()), V: tensor(p.VShape(), memory[k*p.KVType().Size():], p.KVType()),
	}, memory
}

// readAll reads memory on all cores, piece by piece.
func readAll(read func(x *byte, n int), memory []byte) {
	const piece = 1 << 20
	var next atomic.Int64
	var wait sync.WaitGroup
	for range workers.Procs() {
		wait.Go(func() {
			for {
				from := int(next.Add(piece)) - piece
				if from >= len(memory) {
					return
				}
				read(&memory[from], min(piece, len(memory)-from))
			}
		})
	}
	wait.Wait()
}
