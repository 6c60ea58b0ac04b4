package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// measured refuses arguments that limits.cu does not support, and copies.
func (f *fakeDriver) measured(name string, a *limitArgs) error {
	if name != "limits_copy" {
		if a.rounds <= 0 {
			return f.fail("cuLaunchKernel", 1)
		}
		return nil
	}
	from, ok := f.at(a.from)
	to, also := f.at(a.to)
	if n := int(16 * a.words); !ok || !also || n > len(from) || n > len(to) {
		return f.fail("cuLaunchKernel", 700)
	}
	copy(to, from[:16*a.words])
	return nil
}

func TestLimits(t *testing.T) {
	b, f := openFake(t)
	b.dev.Memory = 64 << 20
	instructions := map[flashkit.DType]string{flashkit.Float32: "fma", flashkit.Float16: "wgmma", flashkit.BFloat16: "wgmma"}
	for _, dtype := range dtypes {
		rate, by, err := b.Peak(dtype)
		require.NoError(t, err)
		require.Positive(t, rate)
		require.Equal(t, instructions[dtype], by)
	}
	rate, err := b.CopyRate()
	require.NoError(t, err)
	require.InEpsilon(t, 2*8<<20/1.5e-3, rate, 1e-6) // every launch takes the fake 1.5 ms

	b.images.arch = 80
	_, by, err := b.Peak(flashkit.BFloat16)
	require.NoError(t, err)
	require.Equal(t, "mma.sync", by)

	for call, code := range map[string]int{"cuModuleLoadDataEx": 209, "cuFuncSetAttribute": 1, "cuEventCreate": 2, "cuEventElapsedTime": 600} {
		f.failures[call] = &Error{Call: call, Code: code}
		_, _, err := b.Peak(flashkit.Float32)
		require.ErrorIs(t, err, f.failures[call])
		_, err = b.CopyRate()
		require.ErrorIs(t, err, f.failures[call])
		delete(f.failures, call)
	}
	f.limit = 1 << 20
	_, err = b.CopyRate()
	require.True(t, isOutOfMemory(err))
}

// Every kernel that Peak and CopyRate run is in an image for each architecture, with
// a plan.
func TestImagesHoldLimits(t *testing.T) {
	for _, arch := range []int{80, 86, 89, 90} {
		for file, names := range map[string][]string{"limits": {"limits_f32", "limits_f16", "limits_bf16", "limits_copy"}, "limits_sm90": {"limits_sm90_f16", "limits_sm90_bf16"}} {
			if file == "limits_sm90" && arch != 90 {
				continue
			}
			image, err := readImage(imageFiles, file, arch)
			require.NoError(t, err)
			parsed, err := parseImage(image)
			require.NoError(t, err)
			for _, name := range names {
				require.True(t, parsed.functions[name], name)
				require.Len(t, parsed.plans[name+"_plan"], 16, name)
			}
		}
	}
}
