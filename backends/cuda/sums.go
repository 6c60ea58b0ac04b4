package cuda

import "slices"

// enqueueSums launches the kernels that sum DBias and DSink, if the call requests these gradients.
// It launches none for a DBias that bwd_sm90 writes directly.
func (l *launch) enqueueSums() error {
	x := l.x
	if x.dsink.data != 0 {
		if err := l.sum(sumDSink, l.p.Heads); err != nil {
			return err
		}
	}
	if x.dbias.data == 0 || x.dbiasApart != 0 {
		return nil
	}
	d := x.dbiasShape
	return l.sum(sumDBias, ceilDiv(l.p.KVLen, dbiasTile)*ceilDiv(int(d[2]), dbiasTile)*int(d[1])*int(d[0]))
}

// Tiles of kernels/sums.cu.
const (
	carryRows = 256
	dbiasTile = 64
)

// A sumID is a kernel of kernels/sums.cu.
type sumID int

const (
	sumCarry sumID = iota
	sumDSink
	sumDBias // the first of one kernel per dtype
	numSums  = sumDBias + sumID(len(dtypes))
)

func sumName(id sumID) string {
	switch id {
	case sumCarry:
		return "sums_carry"
	case sumDSink:
		return "sums_dsink"
	}
	return "sums_dbias_" + dtypes[id-sumDBias].String()
}

func (l *launch) sum(id sumID, blocks int) error {
	if blocks == 0 {
		return nil
	}
	if id == sumDBias {
		id += sumID(slices.Index(dtypes[:], l.p.DType))
	}
	f, err := l.b.images.getSum(l.b.drv, id)
	if err != nil {
		return err
	}
	return l.run(f, blocks, true)
}
