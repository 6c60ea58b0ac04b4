package cuda

import (
	"slices"

	"github.com/flashkit-go/flashkit"
)

// onSM80 and onSM90 name the GPUs that kernels require. The program contains machine code for these
// compute capabilities. For newer capabilities it contains PTX, which the driver compiles.
const (
	onSM80 = "NVIDIA GPU of compute capability 8.0 (Ampere) or later"
	onSM90 = "NVIDIA GPU of compute capability 9.0 (Hopper)"
)

var abouts = [...]struct{ about, requires string }{
	fwdSM90:      {"CUDA: WGMMA, TMA loads, softmax overlapped with products; bound by the tensor cores", onSM90},
	fwdSM90Wide:  {"CUDA: WGMMA, TMA loads, two warpgroups share the scores of the same rows, for head dims above 256", onSM90},
	fwdSM90Short: {"CUDA: WGMMA, TMA loads, several small blocks on each multiprocessor, for short sequences; bound by memory", onSM90},

	fwdSM80: {"CUDA: mma.sync, K and V through a pipeline of asynchronous copies; bound by the tensor cores", onSM80},
	bwdSM90: {"CUDA: WGMMA, TMA loads, dK and dV in registers, dQ by bulk adds in one order; bound by shared memory and the tensor cores", onSM90},
	bwdSM80: {"CUDA: mma.sync, five products, dQ summed in one order; bound by the tensor cores", onSM80},
	fwdF32:  {"CUDA: each float32 product as three of tf32 on the tensor cores; bound by the tensor cores", onSM80},
	bwdF32:  {"CUDA: five float32 products as three of tf32 each, dQ summed in one order; bound by the tensor cores", onSM80},

	decodeSM80: {"CUDA: split-KV for few query rows, K and V read once; bound by memory bandwidth", onSM80},
}

// setAbout sets k's description and limits. k.Scores names the order in which the products of a
// score are added. Only the decode kernels have orders of their own.
func setAbout(k *flashkit.Kernel, id familyID) {
	s := &families[id]
	k.About, k.Requires = abouts[id].about, abouts[id].requires
	k.DTypes, k.MaxDim, k.MaxRows = slices.Clone(s.dtypes), s.widest(), s.rows
	if k.Scores = "tensor cores"; s.rows > 0 {
		k.Scores = s.name
	}
}
