package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/internal/terminal"
	"github.com/flashkit-go/flashkit/safetensors"
)

// mutationsVariable sets how many damaged files are tried, each in a process of its own.
const mutationsVariable = "FLASHRUN_MUTATIONS"

// A mutator damages files.
type mutator struct{ *rand.Rand }

// newMutator returns a mutator of a random seed, which it prints.
func newMutator(t *testing.T) mutator {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return mutator{rand.New(rand.NewPCG(seed, 0))}
}

// tries returns how many damaged inputs a test makes.
func tries() int {
	if testing.Short() {
		return 300
	}
	return 1500
}

// numbers stand for lengths, offsets and dimensions in headers.
var numbers = []string{"0", "1", "-1", "2", "3", "7", "64", "1e3", "4096", "1000000", "4294967296", "1125899906842624", "36028797018963968",
	"9223372036854775807", "18446744073709551616", "0.5", "null", "[]", `"1"`, ""}

var (
	numberPattern = regexp.MustCompile(`-?[0-9]+`)
	typePattern   = regexp.MustCompile(`F32|F16|BF16|BOOL|I32|<f4|<f2`)
)

// damage returns a modified copy of a file that begins with a header.
func (m mutator) damage(b []byte, header int) []byte {
	b = bytes.Clone(b)
	for range 1 + m.IntN(4)/3 {
		header = min(header, len(b))
		switch m.IntN(11) {
		case 9, 10: // values: NaN, infinities, large ones
			for at := header; at+4 <= len(b); at += 4 * (1 + m.IntN(8)) {
				binary.LittleEndian.PutUint32(b[at:], []uint32{0x7fc00000, 0x7f800000, 0xff800000, 0x7f7fffff, 1, m.Uint32()}[m.IntN(6)])
			}
		case 0: // bytes anywhere
			for range 1 + m.IntN(4) {
				if len(b) > 0 {
					b[m.IntN(len(b))] = byte(m.Uint32())
				}
			}
		case 1: // bytes of the header
			if header > 0 {
				b[m.IntN(header)] ^= 1 << m.IntN(8)
			}
		case 2: // truncation
			b = b[:m.IntN(len(b)+1)]
		case 3, 4, 5: // a number of the header, with its length adjusted
			b = m.replace(b, header, numberPattern, numbers[m.IntN(len(numbers))])
		case 6:
			b = m.replace(b, header, typePattern, []string{"F32", "F16", "BF16", "F64", "I32", "<f4", "<f2", ">f4", "|O", "\x1b[31m", strings.Repeat("x", 5000), "BOOL", "U8"}[m.IntN(13)])
		case 7: // the length of the header
			if len(b) >= 8 {
				binary.LittleEndian.PutUint64(b, []uint64{0, 1, 1 << 62, 1<<64 - 1, uint64(len(b)), uint64(m.IntN(2000))}[m.IntN(6)])
			}
		case 8: // a piece twice
			if len(b) > 0 {
				from := m.IntN(len(b))
				to := from + m.IntN(min(len(b)-from, 200))
				b = append(b[:to:to], b[from:]...)
			}
		}
	}
	return b
}

// replace puts text in the place of a match in the header of a safetensors or npy file,
// and sets the header's length accordingly.
func (m mutator) replace(b []byte, header int, what *regexp.Regexp, text string) []byte {
	const begin = 10 // of the text in a npy file; in the others that is far enough
	if header <= begin {
		return b
	}
	found := what.FindAllIndex(b[begin:header], -1)
	if len(found) == 0 {
		return b
	}
	at := found[m.IntN(len(found))]
	c := append(append(bytes.Clone(b[:begin+at[0]]), text...), b[begin+at[1]:]...)
	if grown := len(c) - len(b); bytes.HasPrefix(b, []byte("\x93NUMPY")) {
		binary.LittleEndian.PutUint16(c[8:], binary.LittleEndian.Uint16(c[8:])+uint16(grown))
	} else {
		binary.LittleEndian.PutUint64(c, binary.LittleEndian.Uint64(c)+uint64(grown))
	}
	return c
}

// mutated writes a damaged input into a folder and returns the arguments that read it.
func (m mutator) mutated(t *testing.T, dir string) []string {
	types := []string{"F32", "F16", "BF16"}
	dtype := types[m.IntN(len(types))]
	const h = 2
	l := m.layout()
	d := 1 + m.IntN(9)
	tensor := func(name string, shape ...int) safetensors.Tensor {
		size := shape[0] * shape[1] * shape[2] * shape[3]
		if dtype == "F32" {
			return safetensors.FromFloat32s(name, shape, values(size, 0))
		}
		return safetensors.FromUint16s(name, dtype, shape, make([]uint16, size))
	}
	tensors := []safetensors.Tensor{tensor("q", l.q[0], h, l.q[1], d), tensor("k", l.kv[0], 1, l.kv[1], d), tensor("v", l.kv[0], 1, l.kv[1], d), tensor("do", l.q[0], h, l.q[1], d)}
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, text, 0o644))
		return path
	}
	if dtype == "BF16" || m.IntN(3) > 0 { // npy has no BF16
		tensors = append(append(tensors, l.sequences...), m.features(l.b, h, l.n, l.keys)...)
		var file bytes.Buffer
		require.NoError(t, (&safetensors.File{Tensors: tensors}).Write(&file))
		text := file.Bytes()
		return []string{"--in", write("in.safetensors", m.damage(text, 8+int(binary.LittleEndian.Uint64(text))))}
	}
	var args []string
	for i, x := range tensors {
		descr := map[string]string{"F32": "<f4", "F16": "<f2"}[x.DType]
		header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%d, %d, %d, %d), }", descr, x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3])
		header += strings.Repeat(" ", 64-(len(header)+11)%64) + "\n"
		text := append(binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(header))), header...)
		begin := len(text)
		text = append(text, x.Data...)
		if i == m.IntN(len(tensors)) {
			text = m.damage(text, begin)
		}
		args = append(args, "--in", write(x.Name+".npy", text))
	}
	return args
}

// A layout is the storage of sequences in a file: batch and length of query and key tensors, and
// the sequence tensors.
type layout struct {
	b, n, keys int // sequences, and their most rows and keys
	q, kv      [2]int
	sequences  []safetensors.Tensor
}

// layout returns dense, padded, packed or paged sequences.
func (m mutator) layout() layout {
	l := layout{b: 1 + m.IntN(2), n: 1 + m.IntN(9), keys: 1 + m.IntN(9)}
	l.q, l.kv = [2]int{l.b, l.n}, [2]int{l.b, l.keys}
	ints := func(name string, shape []int, f func(i int) int) {
		size := 1
		for _, n := range shape {
			size *= n
		}
		list := make([]int32, size)
		for i := range list {
			list[i] = int32(f(i))
		}
		l.sequences = append(l.sequences, safetensors.FromInt32s(name, shape, list))
	}
	lens := make([]int, l.b)
	switch m.IntN(5) {
	case 0: // padded
		ints("q_lens", []int{l.b}, func(int) int { return m.IntN(l.n + 1) })
		ints("kv_lens", []int{l.b}, func(int) int { return m.IntN(l.keys + 1) })
	case 1: // packed
		l.q, l.kv = [2]int{1, l.b * l.n}, [2]int{1, l.b * l.keys}
		ints("q_starts", []int{l.b + 1}, func(i int) int { return i * l.n })
		ints("kv_starts", []int{l.b + 1}, func(i int) int { return i * l.keys })
	case 2: // paged, two pages per sequence and an unused page
		page := l.keys
		l.keys, l.kv = 2*page, [2]int{2*l.b + 1, page}
		ints("kv_lens", []int{l.b}, func(i int) int { lens[i] = m.IntN(l.keys + 1); return lens[i] })
		ints("pages", []int{l.b, 2}, func(i int) int {
			if i%2*page >= lens[i/2] {
				return []int{-1, 1 << 30, -1 << 31}[m.IntN(3)] // which nothing reads
			}
			return 2*l.b - i
		})
	}
	return l
}

// features returns tensors of features, each by chance.
func (m mutator) features(b, h, n, keys int) (list []safetensors.Tensor) {
	for _, t := range []safetensors.Tensor{
		f32("bias", 0, 1, h, n, keys), {Name: "mask", DType: "BOOL", Shape: []int{b, 1, 1, keys}, Data: make([]byte, b*keys)}, f32("slopes", 1, h), f32("sink", 0, h),
		f32("dlse", 0, b, h, n), f32("o", 0, b, h, n, 3), f32("lse", 0, b, h, n),
	} {
		if m.IntN(6) == 0 {
			list = append(list, t)
		}
	}
	return list
}

// flagSets are the flags to run damaged files with.
var flagSets = [][]string{
	{}, {"--causal"}, {"--pass", "fwd,bwd"}, {"--check"}, {"--pass", "fwd,bwd", "--check"}, {"--layout", "bshd"}, {"--dtype", "bf16"}, {"--dtype", "f16", "--pass", "fwd,bwd"},
	{"--window", "3,0", "--check"}, {"--causal", "--top-left"}, {"--scale", "0.3"}, {"--json"}, {"--json", "--check"}, {"--backend", "simd/fwd_generic"},
	{"--softcap", "3", "--alibi", "--check"}, {"--dropout", "0.3", "--shift", "-2", "--pass", "fwd,bwd", "--check"}, {"--carry"},
	{"--backend", "wasm"}, {"--backend", "wasm", "--pass", "fwd,bwd", "--check"}, {"--backend", "simd", "--layout", "bshd", "--check"},
}

// A damaged file gives one clear error or is computed, and no partial output remains.
func TestMutatedFiles(t *testing.T) {
	slow.UnderRace(t)
	n, processes := tries(), false
	if text := os.Getenv(mutationsVariable); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err, mutationsVariable)
		processes = true
	}
	m := newMutator(t)
	codes, largest := map[int]int{}, int64(0)
	for i := range n {
		dir := t.TempDir()
		args := m.mutated(t, dir)
		before, err := os.ReadDir(dir)
		require.NoError(t, err)
		out := filepath.Join(dir, "o.safetensors")
		args = append(append([]string{"run", "--repeat", "1", "--out", out}, args...), flagSets[m.IntN(len(flagSets))]...)
		run := flashrun
		if processes {
			run = func(t *testing.T, args ...string) (int, string, string) {
				code, stdout, stderr, peak := process(t, args...)
				largest = max(largest, peak)
				return code, stdout, stderr
			}
		}
		code, stdout, stderr := run(t, args...)
		codes[code]++
		requireClear(t, code, stdout, stderr)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		if code == exitOK {
			require.Len(t, left, len(before)+1, "file %d: %v", i, args)
		} else {
			require.Len(t, left, len(before), "file %d: %v", i, args)
		}
	}
	require.Greater(t, codes[exitUsage], n/10)
	require.Greater(t, codes[exitOK], n/20)
	t.Logf("%d files: %d ran, %d refused, %d failed", n, codes[exitOK], codes[exitUsage], codes[exitFailed])
	if largest > 0 {
		t.Logf("the largest process took %s at most", terminal.Bytes(float64(largest)))
	}
}

// process runs flashrun as a process. peak bounds its maximum memory, 0 if unknown.
func process(t *testing.T, args ...string) (code int, stdout, stderr string, peak int64) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "flashrun", args...)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if failure := cmd.Run(); failure != nil {
		require.IsType(t, &exec.ExitError{}, failure)
	}
	peak, own := peakMemory(cmd.ProcessState)
	if peak == 0 {
		t.Log("the memory of the process is not known here, so it is not checked")
	}
	require.LessOrEqual(t, peak, max(200<<20, own))
	return cmd.ProcessState.ExitCode(), out.String(), err.String(), peak
}
