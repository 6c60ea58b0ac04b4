package dispatch

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
)

// A regime is a class of problems for which a kernel's predictions have similar errors. A regime is
// a number that encodes one position per axis. This number is less than the constant regimes.
type regime uint16

// The axes of a regime. The position on axisSize grows by 1 when the FLOPs grow by a factor of
// four. This position is the lowest digit of a regime's number, so neighboring sizes have
// consecutive numbers.
const (
	axisSize = iota
	axisDim
	axisShared
	axisMask
	axisRows
	axisType
	axisExtra
	axes
)

var axisNames = [axes][]string{
	axisSize:   {"4^6", "4^7", "4^8", "4^9", "4^10", "4^11", "4^12", "4^13", "4^14", "4^15", "4^16", "4^17", "4^18", "4^19", "4^20"},
	axisDim:    {"d64", "d128", "wide"},
	axisShared: {"own", "shared"}, // each query head has its own KV head, or several share one
	axisMask:   {"full", "masked"},
	axisRows:   {"row", "few", "many"}, // query rows: at most 2, at most 32, more
	axisType:   {"f32", "f16", "bf16"},
	axisExtra:  {"plain", "extra"}, // whether the problem has features, whose cost does not depend on the matrix products
}

const (
	sizes    = 15
	kinds    = 3 * 3 * 2
	regimes  = sizes * 3 * 2 * 2 * kinds
	smallest = 6 // exponent of the first size
)

// A kind is the part of a regime that decides which kernels compete: the last three axes, which are
// query rows, type and features.
type kind uint8

func (r regime) kind() kind { return kind(r / (regimes / kinds)) }

// String returns the kind's name in profiles, such as few-bf16-plain.
func (k kind) String() string {
	return axisNames[axisRows][k%3] + "-" + axisNames[axisType][k/3%3] + "-" + axisNames[axisExtra][k/9]
}

// neighbors returns the regimes of problems with a fourth of the FLOPs and four times the FLOPs. At
// the ends it returns r itself.
func (r regime) neighbors() (smaller, larger regime) {
	smaller, larger = r, r
	if r%sizes > 0 {
		smaller--
	}
	if r%sizes < sizes-1 {
		larger++
	}
	return smaller, larger
}

func regimeOf(p flashkit.Problem, s flashkit.Pass) regime {
	var at [axes]int
	_, exponent := math.Frexp(p.FLOPs(s))
	at[axisSize] = max(0, min((exponent-1)/2-smallest, sizes-1))
	switch dim := max(p.Dim, p.VDim); {
	case dim > 128:
		at[axisDim] = 2
	case dim > 64:
		at[axisDim] = 1
	}
	if p.KVHeads < p.Heads {
		at[axisShared] = 1
	}
	if p.Band != (flashkit.Band{}) {
		at[axisMask] = 1
	}
	at[axisType] = int(p.DType)
	if p.Features() != 0 {
		at[axisExtra] = 1
	}
	switch {
	case p.QLen > 32:
		at[axisRows] = 2
	case p.QLen > 2:
		at[axisRows] = 1
	}
	r := 0
	for a := axes - 1; a >= 0; a-- {
		r = r*len(axisNames[a]) + at[a]
	}
	return regime(r)
}

// String returns the regime's name in profiles, such as few-bf16-plain-masked-own-d64-4^12.
func (r regime) String() string {
	var names [axes]string
	rest := int(r)
	for a, list := range axisNames {
		names[a] = list[rest%len(list)]
		rest /= len(list)
	}
	return fmt.Sprintf("%s-%s-%s-%s-%s-%s-%s", names[axisRows], names[axisType], names[axisExtra], names[axisMask], names[axisShared], names[axisDim], names[axisSize])
}
