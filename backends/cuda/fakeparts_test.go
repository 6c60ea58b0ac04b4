package cuda

import (
	"strconv"
	"strings"
)

func (k *fakeKernel) writePart(at int, o []float64, lse float64) {
	k.arrays[k.partLSE].set(0, 0, 0, at, lse)
	for c, x := range o {
		k.arrays[k.partO].set(0, 0, 0, at*int(k.vDim)+c, x)
	}
}

// parts returns the number of blocks among which a float32 kernel divides a result's columns.
func (k *fakeKernel) parts(name string, columns int32, each int) int {
	padded, err := strconv.Atoi(name[strings.LastIndex(name, "_d")+2:])
	if err != nil || padded <= each {
		return 1
	}
	return ceilDiv(int(columns), each)
}

// forwardParts is decode for fwd_sm90, whose few blocks process all tiles.
func (k *fakeKernel) forwardParts() {
	k.blocks = ceilDiv(int(k.qLen), int(k.plan[2])) * int(k.batch*k.heads)
	splits, all := int(k.splits), int(k.batch*k.heads*k.qLen)
	k.eachRow(func(b, h, i int) {
		for part := range splits {
			o, lse := k.attend(b, h, i, part*int(k.kvLen)/splits, (part+1)*int(k.kvLen)/splits)
			k.writePart(part*all+k.index(b, h, i), o, lse)
		}
	})
}

// partOfGroup writes dK and dV of a key, summed over some query heads of its group.
func (k *fakeKernel) partOfGroup(b, g, part, j int, dk, dv []float64) {
	for c, x := range dk {
		k.arrays[k.partO].set(0, 0, 0, k.partIndex(b, g, part, j)*int(k.dim)+c, x)
	}
	for c, x := range dv {
		k.arrays[k.partLSE].set(0, 0, 0, k.partIndex(b, g, part, j)*int(k.vDim)+c, x)
	}
}

func (k *fakeKernel) partIndex(b, g, part, j int) int {
	return ((b*int(k.kvHeads)+g)*int(k.splits)+part)*int(k.kvLen) + j
}

func (k *fakeKernel) sumParts() {
	rows, tiles := int(k.plan[2]), ceilDiv(int(k.kvLen), int(k.plan[2]))
	for block := range k.blocks / 2 {
		bg := block / tiles
		b, g := bg/int(k.kvHeads), bg%int(k.kvHeads)
		for j := block % tiles * rows; j < min((block%tiles+1)*rows, int(k.kvLen)); j++ {
			dk, dv := make([]float64, k.dim), make([]float64, k.vDim)
			for part := range int(k.splits) {
				for c := range dk {
					dk[c] += k.arrays[k.partO].get(0, 0, 0, k.partIndex(b, g, part, j)*int(k.dim)+c)
				}
				for c := range dv {
					dv[c] += k.arrays[k.partLSE].get(0, 0, 0, k.partIndex(b, g, part, j)*int(k.vDim)+c)
				}
			}
			for c, x := range dk {
				k.views[vDK].set(b, g, j, c, x*float64(k.scale))
			}
			for c, x := range dv {
				k.views[vDV].set(b, g, j, c, x)
			}
		}
	}
}
