package cuda

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// images are the kernels of one device. The image of a source file is loaded at the first use of
// one of its kernels.
type images struct {
	arch int // compute capability times 10: 90 is sm_90

	mu      sync.Mutex
	modules [len(families)]Module
	ranges  [len(families)]Module                             // of instances with traitRanges
	loaded  [len(families)]atomic.Pointer[[]instanceFunction] // each list is replaced as a whole, so that calls read it without a lock

	sums Module // module of kernels/sums.cu
	sum  [numSums]atomic.Pointer[function]

	joins Module // module of kernels/join.cu
	join  [numJoins]atomic.Pointer[function]

	layers Module // module of kernels/layers.cu
	layer  [numLayers]atomic.Pointer[function]
}

// An instanceFunction is a loaded instance of a family.
type instanceFunction struct {
	kernelKey
	function *function
}

// A kernelKey determines the name of a family's kernel.
type kernelKey struct {
	family familyID
	traits instance
	dtype  flashkit.DType
	dim    int // index of the padded head dim
}

// A function is a loaded kernel with its launch configuration.
type function struct {
	handle     Function
	threads    int // threads of a block
	shared     int // bytes of dynamic shared memory of a block
	rows, keys int // rows and keys of a block's tile
	perSM      int // blocks per multiprocessor
}

// get returns an instance for a problem's dtype and padded head dim, and loads it at first use. The
// device's context must be current.
func (x *images) get(d *Driver, s familyID, i instance, p flashkit.Problem) (*function, error) {
	k := kernelKey{family: s, traits: i, dtype: p.DType}
	if i.perDim() {
		k.dim = families[s].pad(p)
	}
	if f := x.find(k); f != nil {
		return f, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := x.find(k); f != nil {
		return f, nil
	}
	module := &x.modules[s]
	if i&traitRanges != 0 {
		module = &x.ranges[s]
	}
	f, err := x.loadFrom(d, module, families[s].file(i), k.name())
	if err == nil {
		all := []instanceFunction{{k, f}}
		if old := x.loaded[s].Load(); old != nil {
			all = append(all, *old...)
		}
		x.loaded[s].Store(&all)
	}
	return f, err
}

func (x *images) find(k kernelKey) *function {
	if list := x.loaded[k.family].Load(); list != nil {
		for i := range *list {
			if one := &(*list)[i]; one.kernelKey == k {
				return one.function
			}
		}
	}
	return nil
}

func (x *images) getSum(d *Driver, id sumID) (*function, error) {
	if f := x.sum[id].Load(); f != nil {
		return f, nil
	}
	return x.loadOnce(&x.sum[id], func() (*function, error) { return x.loadFrom(d, &x.sums, "sums", sumName(id)) })
}

func (x *images) getJoin(d *Driver, id joinID) (*function, error) {
	if f := x.join[id].Load(); f != nil {
		return f, nil
	}
	return x.loadOnce(&x.join[id], func() (*function, error) { return x.loadFrom(d, &x.joins, "join", joinNames[id]) })
}

func (x *images) getLayer(d *Driver, id layerID) (*function, error) {
	if f := x.layer[id].Load(); f != nil {
		return f, nil
	}
	return x.loadOnce(&x.layer[id], func() (*function, error) { return x.loadFrom(d, &x.layers, "layers", layerNames[id]) })
}

// loadOnce loads a kernel and stores it in *slot, unless an earlier call has done so.
func (x *images) loadOnce(slot *atomic.Pointer[function], load func() (*function, error)) (*function, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := slot.Load(); f != nil {
		return f, nil
	}
	f, err := load()
	if err == nil {
		slot.Store(f)
	}
	return f, err
}

// name returns the name of a kernel, such as bwd_sm80_bf16_d64 or bwd_sm80_delta_bf16.
func (k kernelKey) name() string {
	s := &families[k.family]
	name := s.name + k.traits.name()
	if len(s.dtypes) > 1 && k.family != decodeInt8 { // decode_int8 supports all types
		name += "_" + k.dtype.String()
	}
	if k.traits.perDim() {
		name += "_" + s.dims[k.dim].name()
	}
	return name
}

// loadFrom returns a kernel of a source file. If *m is 0, it first loads the file's image into *m.
func (x *images) loadFrom(d *Driver, m *Module, file, name string) (*function, error) {
	if *m == 0 {
		image, err := readImage(imageFiles, file, x.arch)
		if err != nil {
			return nil, err
		}
		if *m, err = d.ModuleLoadData(image); err != nil {
			return nil, fmt.Errorf("image %s: %w", file, err)
		}
	}
	return loadFunction(d, *m, name)
}

func loadFunction(d *Driver, m Module, name string) (*function, error) {
	h, err := d.ModuleGetFunction(m, name)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	at, size, err := d.ModuleGetGlobal(m, name+"_plan")
	if err != nil {
		return nil, fmt.Errorf("plan of %s: %w", name, err)
	}
	plan := new([4]int32)
	if size != int(unsafe.Sizeof(*plan)) {
		return nil, fmt.Errorf("plan of %s: %d bytes", name, size)
	}
	if err := errors.Join(d.MemcpyDtoHAsync(unsafe.Pointer(plan), at, size, 0), d.StreamSynchronize(0)); err != nil {
		return nil, fmt.Errorf("plan of %s: %w", name, err)
	}
	f := &function{handle: h, threads: int(plan[0]), shared: int(plan[1]), rows: int(plan[2]), keys: int(plan[3])}
	if err := d.FuncSetShared(h, f.shared); err != nil {
		return nil, fmt.Errorf("shared memory of %s: %w", name, err)
	}
	f.perSM, err = d.FuncBlocksPerSM(h, f.threads, f.shared)
	return f, err
}

func (x *images) close(d *Driver) error {
	var all error
	for _, m := range slices.Concat(x.modules[:], x.ranges[:], []Module{x.sums, x.joins, x.layers}) {
		if m != 0 {
			all = errors.Join(all, d.ModuleUnload(m))
		}
	}
	return all
}

// readImage returns the image of a source file for a compute capability. The image is a cubin for
// the same major version and at most the same minor version. If there is no such cubin, the image
// is PTX, which the driver compiles.
func readImage(files fs.FS, file string, arch int) ([]byte, error) {
	packed, err := files.Open(path.Join("images", file+".tar.zst"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no image of %s for sm_%d", file, arch)
	}
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	r, err := decompress(packed)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for images := tar.NewReader(r); ; {
		entry, err := images.Next()
		if err == io.EOF {
			return nil, fmt.Errorf("no image of %s for sm_%d", file, arch)
		}
		if err != nil {
			return nil, fmt.Errorf("images of %s: %w", file, err)
		}
		number, cubin := strings.CutSuffix(strings.TrimPrefix(entry.Name, "sm_"), ".cubin")
		a, err := strconv.Atoi(number)
		if cubin && (err != nil || a/10 != arch/10 || a > arch) {
			continue
		}
		image := make([]byte, entry.Size+1) // PTX is text and ends with a zero
		if _, err := io.ReadFull(images, image[:entry.Size]); err != nil {
			return nil, fmt.Errorf("images of %s: %w", file, err)
		}
		return image, nil
	}
}

type joinID int

const (
	joinSum joinID = iota
	joinMerge
	numJoins
)

var joinNames = [numJoins]string{joinSum: "join_sum", joinMerge: "join_merge"}
