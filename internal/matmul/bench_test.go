package matmul_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flashkit-go/flashkit/internal/matmul"
)

func BenchmarkRun(b *testing.B) {
	for _, w := range []shape{{0, 384, 384}, {0, 1536, 384}, {0, 384, 1536}, {0, 3072, 768}, {0, 1024, 1024}, {0, 4096, 4096}} {
		for _, m := range []int{8, 32, 128, 512, 2048} {
			if w.n == 4096 && m == 2048 {
				continue
			}
			for i := range 2 * int(matmul.Precisions) {
				s, workers, precision := shape{m, w.n, w.k}, 1+i%2, matmul.Precision(i/2)
				b.Run(fmt.Sprintf("%v/%v/w%d", precision, s, workers), func(b *testing.B) {
					p := draw(rand.New(rand.NewPCG(1, 2)), s, uint(precision)<<11)
					p.Workers = workers
					e := matmul.New()
					defer e.Close()
					best := time.Hour
					for b.Loop() {
						start := time.Now()
						if err := e.Run(context.Background(), &p.Args); err != nil {
							b.Fatal(err)
						}
						best = min(best, time.Since(start))
					}
					flops := 2 * float64(s.m) * float64(s.n) * float64(s.k)
					b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
					b.ReportMetric(flops/best.Seconds()/1e9, "best-GFLOP/s")
				})
			}
		}
	}
}
