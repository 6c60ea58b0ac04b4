package nccl

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// meetingVar is the environment variable with the address at which NCCL's ranks meet if no other
// group can send them an ID. NCCL itself reads the variable too.
const meetingVar = "NCCL_COMM_ID"

// OpenLaunched does the same as Open for processes that can meet only through NCCL, such as
// processes that torchrun or Slurm started. launch is the result of ring.Launched. All processes
// must start with the same NCCL_COMM_ID, the host:port of rank 0's machine where NCCL's ranks meet.
//
// Small messages use NCCL as well, and faults are not announced. A wait for a dead rank returns
// when NCCL detects the fault, as it does over a network, or at the context's deadline. The error
// cannot name the dead rank. But the launcher names that rank, and ends the other ranks. If one
// rank cannot start, the other ranks wait until the context's deadline.
func OpenLaunched(ctx context.Context, launch ring.Launch, gpu *cuda.Backend, o Options) (*peer.Rank, error) {
	switch {
	case launch.Size < 1 || launch.Rank < 0 || launch.Rank >= launch.Size:
		return nil, &flashkit.ProblemError{Field: "launch", Value: fmt.Sprint(launch.Rank, " of ", launch.Size), Reason: "must be a rank of some"}
	case os.Getenv(meetingVar) == "":
		return nil, &flashkit.ProblemError{Field: meetingVar, Value: "unset", Reason: "must be host:port of rank 0's machine, a free port, in the environment of all ranks, or they must have another group to meet by, such as MPI's"}
	}
	if err := o.check(ctx, gpu); err != nil {
		return nil, err
	}
	g := newGroup(gpu)
	w := &wire{group: g, rank: launch.Rank, size: launch.Size}
	g.control = w
	return peer.Over(gpu, o.spare(), func(r *peer.Rank) (ring.Group, error) {
		var err error
		if g.lib, err = load(ctx, o); err != nil {
			return nil, err
		}
		id, err := g.lib.UniqueID()
		if err != nil {
			return nil, err
		}
		return g.join(ctx, r, id, o)
	})
}

// A wire is the control group of ranks that can send messages only through NCCL.
type wire struct {
	group      *group
	rank, size int
	bytes      *cuda.Buffer
}

func (w *wire) Rank() int { return w.rank }
func (w *wire) Size() int { return w.size }

// Gather sends the bytes `mine` to all ranks in words of 4 bytes, while the rank's kernels may run.
func (w *wire) Gather(ctx context.Context, mine, all []byte) error {
	if len(all) != len(mine)*w.size {
		return fmt.Errorf("ring/nccl: all has %d bytes; must be %d for %d ranks", len(all), len(mine)*w.size, w.size)
	}
	const word = 4
	n, g := (len(mine)+word-1)/word, w.group
	if n == 0 {
		return nil
	}
	if err := w.grow(n * word * w.size); err != nil {
		return err
	}
	words := make([]int32, n*w.size)
	padded := append(make([]byte, 0, n*word), mine...)[:n*word]
	for i := range n {
		words[i] = int32(binary.LittleEndian.Uint32(padded[i*word:]))
	}
	if err := cuda.Upload(g.rank.Copies(), w.bytes, w.rank*n*word, words[:n]); err != nil {
		return err
	}
	err := g.exchange(ctx, func(r int) flashkit.Tensor { return w.bytes.Tensor(flashkit.Float32, r*n, 1, 1, 1, n) })
	if err != nil {
		return err
	}
	if err := cuda.Download(g.rank.Copies(), words, w.bytes, 0); err != nil {
		return err
	}
	for r := range w.size {
		for i := range n {
			binary.LittleEndian.PutUint32(padded[i*word:], uint32(words[r*n+i]))
		}
		copy(all[r*len(mine):][:len(mine)], padded)
	}
	return nil
}

func (w *wire) grow(bytes int) (err error) {
	if w.bytes != nil && w.bytes.Bytes() >= bytes {
		return nil
	}
	if err := w.Close(); err != nil {
		return err
	}
	w.bytes, err = w.group.gpu.Alloc(bytes)
	return err
}

// Start and Wait are never called, because group has these methods itself.
func (w *wire) Start(context.Context, []ring.Message, []ring.Message) error { return errClosed }
func (w *wire) Wait(context.Context) error                                  { return errClosed }

// Fail does nothing, because it cannot notify other ranks.
func (w *wire) Fail(error) {}

func (w *wire) Close() (err error) {
	if w.bytes != nil {
		err, w.bytes = w.bytes.Free(), nil
	}
	return err
}
