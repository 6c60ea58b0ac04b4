package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/backends/cuda"

	"github.com/flashkit-go/flashkit/safetensors"
)

// Bad input gives one line with the field and the value, exit status 2, and nothing on stdout.
func TestBadInput(t *testing.T) {
	q, k, v := f32("q", 0, 1, 4, 5, 8), f32("k", 0, 1, 2, 7, 8), f32("v", 0, 1, 2, 7, 8)
	good := writeFile(t, "good.safetensors", q, k, v)
	file := func(tensors ...safetensors.Tensor) string { return writeFile(t, "in.safetensors", tensors...) }
	starts := func(name string) safetensors.Tensor { return safetensors.FromInt32s(name, []int{3}, []int32{0, 2, 5}) }
	raw := func(b []byte) string {
		path := filepath.Join(t.TempDir(), "in.safetensors")
		require.NoError(t, os.WriteFile(path, b, 0o644))
		return path
	}
	bytesOf, err := os.ReadFile(good)
	require.NoError(t, err)
	lying := append([]byte(nil), bytesOf...)
	binary.LittleEndian.PutUint64(lying, 1<<62)
	dir := t.TempDir()

	for name, test := range map[string]struct {
		args []string
		want []string // all of them are in the message
	}{
		"unknown command":      {[]string{"fly"}, []string{"fly"}},
		"nearly a command":     {[]string{"benchh"}, []string{`unknown command "benchh" for "flashrun": did you mean bench?`}},
		"help of nothing":      {[]string{"help", "fly"}, []string{`unknown command "fly"`}},
		"unknown shell":        {[]string{"completion", "tcsh"}, []string{`unknown command "tcsh" for "flashrun completion"`}},
		"flag of letters":      {[]string{"run", "--repeat", "x"}, []string{`--repeat "x": invalid syntax`}},
		"flag out of range":    {[]string{"run", "--seed", "99999999999999999999"}, []string{`--seed "99999999999999999999": value out of range`}},
		"flag with a letter":   {[]string{"report", "-o"}, []string{"-o"}},
		"unknown flag":         {[]string{"run", "--fast"}, []string{"--fast"}},
		"old spelling":         {[]string{"run", "--backward"}, []string{"unknown flag: --backward: it is --pass fwd,bwd"}},
		"old passes":           {[]string{"memory", "--pass", "both", "b1-h1-g1-n1-m1-d1-f32"}, []string{`--pass "both": must be a list of fwd and bwd`}},
		"argument too many":    {[]string{"run", "x"}, []string{`argument "x": flashrun run takes flags alone`}},
		"bad problem":          {[]string{"run", "--problem", "b1-h8"}, []string{"b1-h8"}},
		"heads not divisible":  {[]string{"run", "--problem", "b1-h8-g3-n5-m5-d8-f32"}, []string{"KVHeads = 3", "Heads = 8"}},
		"overflow":             {[]string{"run", "--problem", "b1-h1-g1-n4611686018427387904-m5-d8-f32"}, []string{"Q", "4611686018427387904"}},
		"negative":             {[]string{"run", "--problem", "b-1-h1-g1-n5-m5-d8-f32"}, []string{"b-1"}},
		"problem and mask":     {[]string{"run", "--problem", "b1-h1-g1-n5-m5-d8-f32", "--causal"}, []string{"--causal"}},
		"NaN scale":            {[]string{"run", "--in", good, "--scale", "NaN"}, []string{"--scale", "NaN"}},
		"negative scale":       {[]string{"run", "--in", good, "--scale", "-1"}, []string{"--scale", "-1"}},
		"window of one number": {[]string{"run", "--in", good, "--window", "5"}, []string{"--window", "5"}},
		"negative window":      {[]string{"run", "--in", good, "--window", "-3,0"}, []string{"--window", "-3"}},
		"causal and window":    {[]string{"run", "--in", good, "--causal", "--window", "1,1"}, []string{"--causal", "--window"}},
		"unknown dtype":        {[]string{"run", "--in", good, "--dtype", "f64"}, []string{"--dtype", "f64"}},
		"unknown layout":       {[]string{"run", "--in", good, "--layout", "sbhd"}, []string{"--layout", "sbhd"}},
		"unknown backend":      {[]string{"run", "--in", good, "--backend", "tpu"}, []string{"backend = tpu", "simd"}},
		"negative repeat":      {[]string{"run", "--repeat", "-1"}, []string{"--repeat -1"}},
		"no such file":         {[]string{"run", "--in", filepath.Join(dir, "none.safetensors")}, []string{"none.safetensors"}},
		"missing tensor":       {[]string{"run", "--in", file(q, k)}, []string{"tensor v is missing", `there are "k", "q"`}},
		"names of capitals":    {[]string{"run", "--in", file(f32("Q", 0, 1, 4, 5, 8), k, v)}, []string{"tensor q is missing", `there are "Q", "k", "v"`}},
		"starts of rows alone": {[]string{"run", "--in", file(q, k, v, starts("q_starts"))}, []string{"tensor kv_starts is missing", "k has batch 1"}},
		"starts of keys alone": {[]string{"run", "--in", file(q, k, v, starts("kv_starts"))}, []string{"tensor q_starts is missing", "q has batch 1"}},
		"pointer of Git LFS":   {[]string{"run", "--in", raw([]byte("version https://git-lfs.github.com/spec/v1\n"))}, []string{"in.safetensors: ", "a pointer of Git LFS"}},
		"a web page":           {[]string{"run", "--in", "q=" + raw([]byte("<!DOCTYPE html>"))}, []string{"in.safetensors: ", "a web page"}},
		"an unknown type":      {[]string{"run", "--in", raw(bytes.Replace(bytesOf, []byte(`"F32"`), []byte(`"F4X"`), 1))}, []string{"tensor q", "F4X"}},
		"tensor given twice":   {[]string{"run", "--in", good, "--in", good}, []string{"tensor q", good}},
		"name for safetensors": {[]string{"run", "--in", "q=" + good}, []string{"npy", good}},
		"missing do":           {[]string{"run", "--in", good, "--pass", "fwd,bwd"}, []string{"tensor do is missing"}},
		"rank":                 {[]string{"run", "--in", file(f32("q", 0, 4, 5, 8), k, v)}, []string{"tensor q", "rank 3", "[4 5 8]"}},
		"head dims differ":     {[]string{"run", "--in", file(q, f32("k", 0, 1, 2, 7, 9), v)}, []string{"tensor k", "[1 2 7 9]", "[1 2 7 8]"}},
		"batches differ":       {[]string{"run", "--in", file(q, k, f32("v", 0, 2, 2, 7, 8))}, []string{"tensor v", "[2 2 7 8]"}},
		"key heads in file":    {[]string{"run", "--in", file(q, f32("k", 0, 1, 3, 7, 8), f32("v", 0, 1, 3, 7, 8))}, []string{"KVHeads = 3", "Heads = 4"}},
		"types differ":         {[]string{"run", "--in", file(q, safetensors.FromUint16s("k", "F16", []int{1, 2, 7, 8}, make([]uint16, 112)), v)}, []string{"tensor v", "f16", "f32"}},
		"types of f16":         {[]string{"run", "--in", file(safetensors.FromUint16s("q", "F16", []int{1, 4, 5, 8}, make([]uint16, 160)), k, v)}, []string{"tensor k", "f16", "f32"}},
		"keys of bf16 and f16": {[]string{"run", "--dtype", "f16-kvbf16"}, []string{"--dtype", "f16-kvbf16", "f32-kvbf16"}},
		"type not taken":       {[]string{"run", "--in", file(safetensors.Tensor{Name: "q", DType: "I32", Shape: q.Shape, Data: q.Data}, k, v)}, []string{"tensor q", "I32"}},
		"truncated":            {[]string{"run", "--in", raw(bytesOf[:len(bytesOf)-4])}, []string{"safetensors"}},
		"truncated header":     {[]string{"run", "--in", raw(bytesOf[:20])}, []string{"safetensors"}},
		"lying header":         {[]string{"run", "--in", raw(lying)}, []string{"safetensors", "4611686018427387904"}},
		"empty file":           {[]string{"run", "--in", raw(nil)}, []string{"safetensors"}},
		"out is in":            {[]string{"run", "--in", good, "--out", good}, []string{"overwrite", good}},
		"out is a folder":      {[]string{"run", "--in", good, "--out", dir}, []string{"--out", dir}},
		"out in no folder":     {[]string{"run", "--in", good, "--out", filepath.Join(dir, "none", "o.safetensors")}, []string{"--out"}},
		"oracle too large":     {[]string{"run", "--problem", "b1-h1-g1-n65536-m65536-d8-f32", "--check"}, []string{"--check"}},
		"explain nothing":      {[]string{"explain"}, []string{"PROBLEM is missing"}},
		"explain two":          {[]string{"explain", "b1-h1-g1-n1-m1-d1-f32", "x"}, []string{`argument "x": flashrun explain takes one PROBLEM`}},
		"explain nonsense":     {[]string{"explain", "b1"}, []string{"b1"}},
		"conformance pattern":  {[]string{"conformance", "--case", "["}, []string{"["}},
		"conformance nothing":  {[]string{"conformance", "--case", "nothing_like_this"}, []string{"match"}},
		"conformance budget":   {[]string{"conformance", "--budget", "-1s"}, []string{"--budget -1s"}},
		"conformance quick":    {[]string{"conformance", "--quick", "--sweep", "3"}, []string{"--quick and --sweep"}},
		"conformance both":     {[]string{"conformance", "--quick", "--budget", "3s"}, []string{"--budget"}},
		"conformance sweep":    {[]string{"conformance", "--sweep", "-1"}, []string{"--sweep -1"}},

		"bench argument":           {[]string{"bench", "x"}, []string{"x"}},
		"bench list":               {[]string{"bench", "--seq", "128,abc"}, []string{"--seq", "128,abc", `"abc"`}},
		"bench zero":               {[]string{"bench", "--head-dim", "0"}, []string{"--head-dim", `"0"`}},
		"bench empty list":         {[]string{"bench", "--q-len", ""}, []string{"--q-len", `""`}},
		"bench range":              {[]string{"bench", "--batch", "8:4:x2"}, []string{"--batch", "8:4:x2"}},
		"bench huge range":         {[]string{"bench", "--heads", "1:999999999:+1"}, []string{"--heads", "1:999999999:+1"}},
		"bench huge grid":          {[]string{"bench", "--seq", "1:999:+1", "--q-len", "1:999:+1"}, []string{"--seq", "10000"}},
		"bench overflow":           {[]string{"bench", "--seq", "4611686018427387904"}, []string{"--seq 4611686018427387904"}},
		"bench heads":              {[]string{"bench", "--kv-heads", "3"}, []string{"--kv-heads 3", "--heads 8"}},
		"bench causal":             {[]string{"bench", "--causal=maybe"}, []string{"--causal", "maybe", "true, false or both"}},
		"bench causal apart":       {[]string{"bench", "--causal", "both"}, []string{`"both"`, "it is --causal=both"}},
		"bench causal and window":  {[]string{"bench", "--causal=both", "--window", "1,1"}, []string{"--causal", "--window"}},
		"run causal both":          {[]string{"run", "--causal=both"}, []string{"--causal", "both", "true or false"}},
		"bench dtype":              {[]string{"bench", "--dtype", "f32,f64"}, []string{"--dtype", "f32,f64"}},
		"bench pass":               {[]string{"bench", "--pass", "sideways"}, []string{"--pass", "sideways"}},
		"bench backend":            {[]string{"bench", "--backend", "simd,tpu"}, []string{"--backend tpu", "simd"}},
		"bench kernels":            {[]string{"bench", "--kernels", "some"}, []string{"--kernels", "some"}},
		"bench memory":             {[]string{"bench", "--memory", "tape"}, []string{"--memory", "tape"}},
		"bench problem":            {[]string{"bench", "--problem", "b1-h8"}, []string{"--problem b1-h8"}},
		"bench problem and grid":   {[]string{"bench", "--problem", "b1-h1-g1-n5-m5-d8-f32", "--seq", "5"}, []string{"--seq", "--problem"}},
		"bench no time":            {[]string{"bench", "--time-per-case", "0s"}, []string{"--time-per-case 0s"}},
		"bench nonsense time":      {[]string{"bench", "--time-per-case", "soon"}, []string{"--time-per-case", "soon"}},
		"bench rounds":             {[]string{"bench", "--rounds", "0"}, []string{"--rounds 0"}},
		"bench two formats":        {[]string{"bench", "--csv", "--json"}, []string{"--json", "--csv"}},
		"bench compare in CSV":     {[]string{"bench", "--csv", "--compare", good}, []string{"--compare", good}},
		"bench compare no file":    {[]string{"bench", "--compare", filepath.Join(dir, "none.json")}, []string{"--compare", "none.json"}},
		"bench compare other file": {[]string{"bench", "--compare", good}, []string{"--compare", good, "not the JSON"}},
		"bench compare other JSON": {[]string{"bench", "--compare", raw([]byte(`{"format": 99}`))}, []string{"--compare", "format = 99"}},
		"bench runs":               {[]string{"bench", "--trace", "layers", "--runs", "0"}, []string{"--runs 0"}},
		"bench runs of nothing":    {[]string{"bench", "--runs", "2"}, []string{"--runs 2", "--trace"}},
		"bench trace and grid":     {[]string{"bench", "--trace", "layers", "--seq", "5"}, []string{"--seq", "--trace"}},
		"bench live in CSV":        {[]string{"bench", "--trace", "layers", "--csv"}, []string{"--csv", "--trace"}},
		"bench trace no file":      {[]string{"bench", "--trace", filepath.Join(dir, "none.trace")}, []string{"--trace", "none.trace"}},
		"bench trace is a folder":  {[]string{"bench", "--trace", dir}, []string{"--trace", dir}},
		"bench trace nonsense":     {[]string{"bench", "--trace", raw([]byte("fwd b1"))}, []string{"--trace", "line 1", "b1"}},
		"bench trace backends":     {[]string{"bench", "--trace", "layers", "--backend", "simd,wasm"}, []string{"simd,wasm"}},
		"bench out is a folder":    {[]string{"bench", "--out", dir}, []string{"--out", dir}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := flashrun(t, test.args...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.True(t, strings.HasPrefix(stderr, "flashrun: "), stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %q", stderr)
			for _, want := range test.want {
				require.Contains(t, stderr, want)
			}
		})
	}
	after, err := os.ReadFile(good)
	require.NoError(t, err)
	require.Equal(t, bytesOf, after)
	left, err := os.ReadDir(filepath.Dir(good))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing half-written is left")
}

func TestUnavailableBackendIsAFailure(t *testing.T) {
	code, stdout, stderr := flashrun(t, "run", "--backend", "cuda")
	if code == exitOK {
		t.Skip("this machine has a GPU")
	}
	require.Equal(t, exitFailed, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "cuda")

	t.Setenv("FLASHKIT_BACKEND", "cuda")
	code, _, _ = flashrun(t, "run")
	require.Equal(t, exitFailed, code, "the environment is an explicit choice too")
	require.Contains(t, ok(t, "run", "--backend", "simd", "--repeat", "1"), "simd/", "and the flag overrides it")
}

// A GPU that somebody asks for by number and that is not there is an error, unless a
// backend is named that has no use for it.
func TestUnavailableDevice(t *testing.T) {
	t.Setenv("FLASHKIT_DEVICE", "")
	t.Setenv("FLASHKIT_BACKEND", "")
	for _, command := range [][]string{{"run"}, {"explain", "b1-h1-g1-n4-m4-d8-f32"}, {"bench", "--problem", "b1-h1-g1-n4-m4-d8-f32"}, {"calibrate", "--out", filepath.Join(t.TempDir(), "p.json")}} {
		code, stdout, stderr := flashrun(t, append(command, "--device", "4096")...)
		require.Equal(t, exitFailed, code, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "device 4096 requested: cuda: unavailable on this machine: ")
		require.Equal(t, "4096", os.Getenv("FLASHKIT_DEVICE"))
		require.NoError(t, os.Setenv("FLASHKIT_DEVICE", ""))
	}
	require.Contains(t, ok(t, "run", "--device", "4096", "--backend", "simd", "--repeat", "1"), "simd/")
	for _, wrong := range []string{"-1", "gpu", "0x1", "0,1"} {
		code, _, stderr := flashrun(t, "run", "--device="+wrong)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, `--device "`+wrong+`": must be the number of a GPU, from 0`)
	}
}

func TestListDevices(t *testing.T) {
	const memory = min(140<<30, math.MaxInt) // 2 GiB where an int has 32 bits
	lines := listDevices([]cuda.Device{
		{Ordinal: 0, Name: "NVIDIA H200", Major: 9, SMs: 132, Memory: memory},
		{Ordinal: 1, Name: "Old", Major: 6, Minor: 1, Memory: 1 << 30, Reason: "architecture below sm_70"},
	})
	text := string(printed(lines, true))
	require.Contains(t, text, "GPU 0    NVIDIA H200, 140.0 GiB, compute capability 9.0, 132 multiprocessors\n")
	require.Contains(t, text, "GPU 1    architecture below sm_70\n")
	require.Equal(t, &gpu{0, "NVIDIA H200", memory, "9.0", 132}, lines[0].Device)
	require.True(t, lines[0].Available)
	require.False(t, lines[1].Available)
}

func TestReadOnlyFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o555))
	if os.Geteuid() == 0 {
		dir = "/proc" // root may write everywhere else
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no folder here that cannot be written")
	}
	code, _, stderr := flashrun(t, "run", "--out", filepath.Join(dir, "o.safetensors"))
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, dir)
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := filepath.Join(t.TempDir(), "o.safetensors")
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitInterrupted, execute(ctx, []string{"run", "--out", out}, &stdout, &stderr))
	require.Equal(t, "flashrun: interrupted\n", stderr.String())
	left, err := os.ReadDir(filepath.Dir(out))
	require.NoError(t, err)
	require.Empty(t, left)
}

// An output that exists is replaced whole, if an earlier run wrote it.
func TestOutputIsReplaced(t *testing.T) {
	out := filepath.Join(t.TempDir(), "o.safetensors")
	for _, problem := range []string{"b1-h1-g1-n64-m64-d64-f32", "b1-h1-g1-n1-m1-d1-f32"} {
		ok(t, "run", "--problem", problem, "--out", out, "--repeat", "1")
		require.Equal(t, problem, readFile(t, out).Metadata["problem"])
	}
	out = writeFile(t, "o.safetensors", f32("theirs", 0, 1))
	code, _, stderr := flashrun(t, "run", "--out", out, "--repeat", "1")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "exists and is not an output of flashrun run")
	require.Equal(t, "theirs", readFile(t, out).Tensors[0].Name)
}
