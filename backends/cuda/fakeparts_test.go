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

// parts returns among how many blocks a float32 kernel for wide heads deals out
// the columns of a result.
func (k *fakeKernel) parts(name string, columns int32, each int) int {
	padded, err := strconv.Atoi(name[strings.LastIndex(name, "_d")+2:])
	if err != nil || padded <= each {
		return 1
	}
	return ceilDiv(int(columns), each)
}

// forwardParts is decode of fwd_sm90, whose few blocks take all tiles.
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
