package simd_test

import (
	"testing"

	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/conformance"
)

func TestConformance(t *testing.T) { conformance.Run(t, simd.New()) }
