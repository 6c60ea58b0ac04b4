package cuda

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The images are the pinned compiler's output for these sources: images.sum holds a hash of each. A
// source that changed without make cuda fails.
func TestImagesAreCurrent(t *testing.T) {
	sum, err := os.Open("kernels/images.sum")
	require.NoError(t, err)
	defer sum.Close()
	stamped := map[string]bool{}
	for lines := bufio.NewScanner(sum); lines.Scan(); {
		hash, file, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			require.Regexp(t, `^(compiler V13\.0\.88|flags -O3 .*)$`, lines.Text())
			continue
		}
		data, err := os.ReadFile(filepath.Join("kernels", filepath.FromSlash(file)))
		require.NoError(t, err)
		require.Equal(t, hash, fmt.Sprintf("%x", sha256.Sum256(data)), "%s has changed since make cuda", file)
		stamped[path.Join("kernels", file)] = true
	}
	for _, pattern := range []string{"kernels/*.cu", "kernels/*.cuh", "kernels/build.sh", "images/*"} {
		files, err := fs.Glob(os.DirFS("."), pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			require.True(t, stamped[file], "%s is not in images.sum; run make cuda", file)
		}
	}
}

// Every kernel of the table is in every image, with a plan that the architecture supports.
func TestImagesHoldEveryKernel(t *testing.T) {
	shared := map[int]int{80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
	for id := range families {
		for arch, most := range shared {
			if arch < families[id].arch {
				continue
			}
			for _, file := range families[id].files() {
				image, err := readImage(imageFiles, file, arch)
				require.NoError(t, err)
				parsed, err := parseImage(image)
				require.NoError(t, err)
				for _, name := range instances(familyID(id), arch, file) {
					require.True(t, parsed.functions[name], "sm_%d lacks %s", arch, name)
					plan := parsed.plans[name+"_plan"]
					require.Len(t, plan, 16, name)
					threads, bytes := int32(binary.LittleEndian.Uint32(plan)), int32(binary.LittleEndian.Uint32(plan[4:]))
					require.True(t, threads >= 32 && threads <= 1024 && threads%32 == 0, "%s has %d threads", name, threads)
					require.True(t, bytes >= 0 && int(bytes) <= most, "%s on sm_%d has %d bytes of shared memory", name, arch, bytes)
				}
			}
		}
		if families[id].arch > 80 {
			continue
		}
		ptx, err := readImage(imageFiles, families[id].name, 120)
		require.NoError(t, err)
		for _, name := range instances(familyID(id), 120, families[id].name) {
			require.Contains(t, string(ptx), ".entry "+name+"(")
		}
	}
	size := 0
	require.NoError(t, fs.WalkDir(imageFiles, ".", func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += int(info.Size())
		}
		return err
	}))
	require.LessOrEqual(t, size, 12<<20, "bytes of all images")
}

// files returns the names of the source files of a family's instances.
func (s *family) files() (names []string) {
	for _, i := range s.instances {
		if name := s.file(i); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// instances returns the names of a family's kernels of a source file, for an architecture.
func instances(id familyID, arch int, file string) (names []string) {
	s := &families[id]
	for _, i := range s.instances {
		if !i.on(arch) || s.file(i) != file {
			continue
		}
		for _, dtype := range s.dtypes {
			for _, dim := range s.dimsOf(i) {
				if i.perDim() && s.dims[dim].dim > s.widestOn(arch) {
					continue
				}
				if name := (kernelKey{id, i, dtype, dim}).name(); !slices.Contains(names, name) { // decode_int8 supports all types
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// dimsOf returns the indices of the padded head dims that have an instance.
func (s *family) dimsOf(i instance) (list []int) {
	for dim, d := range s.dims {
		if s.has(i, d) && (i.perDim() || dim == 0) {
			list = append(list, dim)
		}
	}
	return list
}

// on reports whether an architecture has kernels of the instance.
func (i instance) on(arch int) bool { return i&traitCluster == 0 || arch == 90 }

// Every image of sums holds all its kernels.
func TestImagesHoldSums(t *testing.T) {
	for _, arch := range []int{80, 86, 89, 90} {
		image, err := readImage(imageFiles, "sums", arch)
		require.NoError(t, err)
		parsed, err := parseImage(image)
		require.NoError(t, err)
		for id := range numSums {
			require.True(t, parsed.functions[sumName(id)], "sm_%d lacks %s", arch, sumName(id))
			require.Len(t, parsed.plans[sumName(id)+"_plan"], 16)
		}
	}
	ptx, err := readImage(imageFiles, "sums", 120)
	require.NoError(t, err)
	for id := range numSums {
		require.Contains(t, string(ptx), ".entry "+sumName(id)+"(")
	}
}

func TestReadImage(t *testing.T) {
	for arch, elf := range map[int]bool{80: true, 87: true, 89: true, 90: true, 100: false, 120: false} {
		image, err := readImage(imageFiles, "fwd_f32", arch)
		require.NoError(t, err)
		require.Equal(t, elf, strings.HasPrefix(string(image), "\x7fELF"), arch)
	}
	_, err := readImage(imageFiles, "fwd_none", 90)
	require.EqualError(t, err, "no image of fwd_none for sm_90")
}
