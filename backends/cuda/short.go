package cuda

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// enqueueShort launches fwd_sm90_short: a block for each tile of a head's query rows.
func (b *Backend) enqueueShort(id stemID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	f, err := b.images.get(b.drv, id, 0, p)
	if err != nil {
		return err
	}
	if err := b.mapTensors(x, flashkit.PassForward, p.DType, mappedShapes(p), [...]int{groupRows, f.keys, f.keys, groupRows}); err != nil {
		return err
	}
	x.rows = rowTiles{tall: int32(ceilDiv(p.QLen, f.rows))}
	return b.run(f, int(x.rows.tall)*p.Batch*p.Heads, unsafe.Pointer(&x.mapped), s)
}
