package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var writeDocs = flag.Bool("write-docs", false, "write docs/gpu-kernels.md instead of comparing")

// resources are the resources of a kernel according to its image.
type resources struct {
	threads, shared, rows, keys int // its plan
	registers, local            int // per thread: registers, bytes of local memory
}

// Attributes of the section .nv.info of a cubin that resourcesOf reads. An attribute is its format,
// its number, and two bytes: the value or, in format 4, the size of the value that follows.
const (
	nvinfoValue     = 4
	nvinfoFrameSize = 0x11 // kernel, bytes of local memory per thread
	nvinfoRegisters = 0x2f // kernel, registers per thread at launch
)

// resourcesOf returns the resources of the kernels of a cubin, by name.
func resourcesOf(image []byte) (map[string]resources, error) {
	parsed, err := parseImage(image)
	if err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	symbols, err := file.Symbols()
	if err != nil {
		return nil, err
	}
	info := file.Section(".nv.info")
	if info == nil {
		return nil, fmt.Errorf("no .nv.info")
	}
	data, err := info.Data()
	if err != nil {
		return nil, err
	}
	list := map[string]resources{}
	for name := range parsed.functions {
		plan := parsed.plans[name+"_plan"]
		if len(plan) != 16 {
			continue // a function that kernels call
		}
		field := func(i int) int { return int(int32(binary.LittleEndian.Uint32(plan[4*i:]))) }
		list[name] = resources{threads: field(0), shared: field(1), rows: field(2), keys: field(3), registers: -1, local: -1}
	}
	for len(data) >= 4 {
		format, attribute, size := data[0], data[1], int(binary.LittleEndian.Uint16(data[2:]))
		data = data[4:]
		if format != nvinfoValue {
			continue
		}
		if size > len(data) {
			return nil, fmt.Errorf(".nv.info: attribute %#x has %d bytes of %d", attribute, len(data), size)
		}
		if attribute == nvinfoFrameSize || attribute == nvinfoRegisters {
			at, value := int(binary.LittleEndian.Uint32(data)), int(binary.LittleEndian.Uint32(data[4:]))
			name := symbols[at-1].Name // Symbols omits the first, which is empty
			r, ok := list[name]
			switch {
			case !ok:
				// A function that kernels call.
			case attribute == nvinfoRegisters:
				r.registers = value
			default:
				r.local = value
			}
			if ok {
				list[name] = r
			}
		}
		data = data[size:]
	}
	return list, nil
}

// docs/gpu-kernels.md agrees with the images. make docs writes it.
func TestKernelTable(t *testing.T) {
	const file = "../../docs/gpu-kernels.md"
	want := kernelTable(t)
	if *writeDocs {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err, "make docs writes it")
	require.Equal(t, want, strings.ReplaceAll(string(got), "\r\n", "\n"), "docs/gpu-kernels.md is not what the images say: make docs")
}

const kernelTableHead = `# Tiles and registers of the GPU kernels

Made by ` + "`make docs`" + ` from the embedded images, and held to them by a test. Each row is one compiled kernel, or several
with equal figures.

- **tile**: query rows x keys of a thread block's tile; in ` + "`decode_sm80`" + `, its rows x the keys that a warp loads at a time.
  Helper kernels have rows only.
- **registers**: of a thread, at launch. The kernels of ` + "`fwd_sm90` and `bwd_sm90`" + ` move registers from the warps that load to
  the warpgroups that compute.
- **local**: bytes of local memory of a thread, which holds spilled registers and arrays that are indexed at run time. 0
  means that nothing is spilled.
- **shared**: dynamic shared memory of a thread block, in bytes. CUDA reserves 1024 bytes more for each block.

A GPU runs the image of its own architecture, or of the next lower one with the same major version. Newer GPUs run code
that the driver compiles from PTX, which has the tiles of 8.9; its registers are the driver's choice.
`

// A kernelRow is a row of the table, with its meaning in reading order.
type kernelRow struct {
	name           string // without dtype and architecture
	dim            string
	dtypes, arches []string
	resources
}

func kernelTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString(kernelTableHead)
	for id := range families {
		fmt.Fprintf(&b, "\n## %s\n\n", families[id].name)
		b.WriteString("| kernel | head dim | types | compute capability | tile | threads | registers | local | shared |\n")
		b.WriteString("|---|---:|---|---|---:|---:|---:|---:|---:|\n")
		for _, r := range kernelRows(t, familyID(id)) {
			tile := strconv.Itoa(r.rows)
			if r.keys > 0 {
				tile += " x " + strconv.Itoa(r.keys)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d | %d | %d | %d |\n", r.name, r.dim, strings.Join(r.dtypes, ", "),
				strings.Join(r.arches, ", "), tile, r.threads, r.registers, r.local, r.shared)
		}
	}
	return b.String()
}

// kernelRows returns the rows of a family by instance, head dim, dtype and architecture. Rows with
// equal figures are one.
func kernelRows(t *testing.T, id familyID) (rows []kernelRow) {
	s := &families[id]
	images := map[int]map[string]resources{}
	arches := []int{80, 86, 89, 90}
	if s.hopper {
		arches = []int{90}
	}
	for _, arch := range arches {
		images[arch] = map[string]resources{}
		for _, file := range s.files() {
			image, err := readImage(imageFiles, file, arch)
			require.NoError(t, err)
			list, err := resourcesOf(image)
			require.NoError(t, err)
			require.Len(t, list, len(instances(id, arch, file)), "%s for sm_%d", file, arch)
			maps.Copy(images[arch], list)
		}
	}
	for _, i := range s.instances {
		for _, dim := range s.dimsOf(i) {
			first := len(rows)
			for _, dtype := range s.dtypes {
				for _, arch := range arches {
					if !i.on(arch) || i.perDim() && s.dims[dim].dim > s.widestOn(arch) {
						continue
					}
					name := kernelKey{id, i, dtype, dim}.name()
					r, ok := images[arch][name]
					require.True(t, ok && r.registers > 0 && r.local >= 0, "%s of %s for sm_%d: %+v", name, s.name, arch, r)
					row := kernelRow{name: s.name + i.name(), dim: "any", resources: r}
					if i.perDim() {
						row.dim = strings.NewReplacer("d", "", "_dv", ", ").Replace(s.dims[dim].name())
					}
					rows = mergeRow(rows, first, row, dtype.String(), fmt.Sprintf("%d.%d", arch/10, arch%10))
				}
			}
			rows = mergeTypes(rows, first)
		}
	}
	return rows
}

// mergeRow adds an architecture to the row of that dtype with the same figures, from first on, or
// adds a row.
func mergeRow(rows []kernelRow, first int, row kernelRow, dtype, arch string) []kernelRow {
	for i := first; i < len(rows); i++ {
		if rows[i].resources == row.resources && rows[i].dtypes[0] == dtype {
			rows[i].arches = append(rows[i].arches, arch)
			return rows
		}
	}
	row.dtypes, row.arches = []string{dtype}, []string{arch}
	return append(rows, row)
}

// mergeTypes merges the rows from first on that differ only in dtype.
func mergeTypes(rows []kernelRow, first int) []kernelRow {
	merged := rows[:first:first]
	for _, row := range rows[first:] {
		i := slices.IndexFunc(merged[first:], func(m kernelRow) bool {
			return m.resources == row.resources && slices.Equal(m.arches, row.arches)
		})
		if i < 0 {
			merged = append(merged, row)
		} else {
			merged[first+i].dtypes = append(merged[first+i].dtypes, row.dtypes...)
		}
	}
	return merged
}

// The shared memory of resourcesOf is the plan's. No kernel declares more: a section of shared
// memory holds the 1024 bytes that CUDA reserves, or nothing.
func TestSharedMemoryIsThePlans(t *testing.T) {
	for id := range families {
		image, err := readImage(imageFiles, families[id].name, 90)
		require.NoError(t, err)
		file, err := elf.NewFile(bytes.NewReader(image))
		require.NoError(t, err)
		for _, s := range file.Sections {
			if strings.HasPrefix(s.Name, ".nv.shared.") {
				require.Contains(t, []uint64{0, 1024}, s.Size, "%s of %s", s.Name, families[id].name)
			}
		}
	}
}

func TestResourcesOfDamagedImages(t *testing.T) {
	image, err := readImage(imageFiles, "fwd_sm90", 90)
	require.NoError(t, err)
	_, err = resourcesOf(image[:100])
	require.Error(t, err)
	file, err := elf.NewFile(bytes.NewReader(image))
	require.NoError(t, err)
	at := file.Section(".nv.info").Offset
	damaged := bytes.Clone(image)
	damaged[at+2], damaged[at+3] = 0xff, 0xff
	_, err = resourcesOf(damaged)
	require.ErrorContains(t, err, ".nv.info")
}
