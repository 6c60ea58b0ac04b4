package simd

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// What the kernels in assembly take beyond dense attention, by name: what is new must be
// taught first.
const (
	bwdTake = flashkit.FeatureShift | flashkit.FeatureSoftcap | flashkit.FeatureALiBi | flashkit.FeatureBias | flashkit.FeatureMask |
		flashkit.FeatureSink | flashkit.FeatureDropout | flashkit.FeatureOrigin | flashkit.FeatureRagged
	fwdTake = bwdTake | flashkit.FeaturePage | flashkit.FeatureCarry
)

// withOthers returns the kernels in assembly in the order of abouts: own, and those that this
// program cannot run, as they are for another platform, or a build tag turns them off.
func withOthers(own []flashkit.Kernel) (list []flashkit.Kernel) {
	for _, k := range abouts {
		i := slices.IndexFunc(own, func(o flashkit.Kernel) bool { return o.Name == k.Name })
		switch {
		case i >= 0:
			list = append(list, own[i])
		case k.Requires != "":
			list = append(list, without(k))
		}
	}
	return list
}

// without returns k as a kernel that this program cannot run.
func without(k flashkit.Kernel) flashkit.Kernel {
	reason := "requires " + k.Requires
	if strings.Contains(k.Requires, runtime.GOARCH) {
		reason = "requires assembly, which a build tag left out"
	}
	k.Missing = func() string { return reason }
	k.Cost = func(*flashkit.Call) time.Duration { return math.MaxInt64 / 2 }
	k.Run = func(context.Context, *flashkit.Call) error { return errors.New(reason) }
	switch {
	case strings.Contains(k.Name, "/bwd_"):
		k.Pass, k.Takes = flashkit.PassBackward, bwdTake
	case slices.Contains(k.DTypes, flashkit.Float32):
		k.Takes = fwdTake | flashkit.FeatureMixed
	default: // of bf16 alone, as Q is
		k.Takes = fwdTake
	}
	return k
}
