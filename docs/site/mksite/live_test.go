package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/safetensors"
)

// sums are the sums of each row's weights that the page computes for its own display.
const sums = `Array.from({length: document.querySelectorAll(".token").length}, (_, i) => flashkit.weights(i).reduce((a, b) => a + b))`

func requireSums(t *testing.T, x *tab, rows int) {
	var got []float64
	x.eval(t, sums, &got)
	require.Len(t, got, rows)
	for i, sum := range got {
		require.InDelta(t, 1, sum, 1e-4, "row %d", i)
	}
}

// For every choice of options O has the bits that it has in Go, the weights of each row sum to 1, and the
// time is one that the clock can tell.
func testOptions(t *testing.T, c *chromium) {
	x, address := open(t, c, 1440, "light")
	s, err := readSample(t.Context(), root)
	require.NoError(t, err)
	require.Len(t, s.Outputs, 36)
	for key := range s.Outputs {
		chosen := strings.Split(key, ",")
		var got []string
		x.eval(t, fmt.Sprintf(`(() => {
			const $ = id => document.getElementById(id);
			$("causal").checked = %s, $("window").value = %q, $("softcap").value = %s || "0", $("alibi").checked = %s;
			$("causal").dispatchEvent(new Event("change"));
			return [$("same").textContent, $("took").textContent, $("window").value, $("softcap").value];
		})()`, chosen[0], chosen[1], chosen[2], chosen[3]), &got)
		require.Equal(t, "O has the same bits as in Go.", got[0], key)
		require.Regexp(t, `^[0-9.]+ ms$`, got[1])
		require.NotRegexp(t, `^[0.]+ ms$`, got[1])
		require.Equal(t, chosen[1:3], got[2:], "the page has these choices")
		requireSums(t, x, 121)
	}
	x.quiet(t, address, "data:", "blob:")
}

// A visitor's file is computed, in each type; a wrong file is refused and changes nothing.
func testOwnTensors(t *testing.T, c *chromium) {
	x, address := open(t, c, 390, "light")
	choose := func(b []byte) (said string) {
		path := filepath.Join(t.TempDir(), "own.safetensors") // another path, so that the page hears of the change
		require.NoError(t, os.WriteFile(path, b, 0o666))
		var object struct {
			Result struct{ ObjectID string }
		}
		x.eval(t, `document.getElementById("own-said").textContent = ""`, nil)
		x.call(t, "Runtime.evaluate", map[string]any{"expression": `document.getElementById("own")`}, &object)
		x.call(t, "DOM.setFileInputFiles", map[string]any{"files": []string{path}, "objectId": object.Result.ObjectID}, nil)
		x.until(t, `document.getElementById("own-said").textContent !== ""`)
		x.eval(t, `document.getElementById("own-said").textContent`, &said)
		return said
	}
	file := func(dtype string, shapes map[string][]int) []byte {
		var list []safetensors.Tensor
		for name, shape := range shapes {
			n := 1
			for _, d := range shape {
				n *= d
			}
			f, u := make([]float32, n), make([]uint16, n)
			for i := range f {
				f[i] = rand.Float32()*2 - 1
				if u[i] = half.ToF16(f[i]); dtype == "BF16" {
					u[i] = half.ToBF16(f[i])
				}
			}
			if dtype == "F32" {
				list = append(list, safetensors.FromFloat32s(name, shape, f))
			} else {
				list = append(list, safetensors.FromUint16s(name, dtype, shape, u))
			}
		}
		var b bytes.Buffer
		require.NoError(t, (&safetensors.File{Tensors: list}).Write(&b))
		return b.Bytes()
	}
	for _, dtype := range []string{"F32", "F16", "BF16"} {
		said := choose(file(dtype, map[string][]int{"q": {1, 6, 40, 24}, "k": {2, 40, 24}, "v": {1, 2, 40, 8}, "other": {3}}))
		require.Equal(t, "own.safetensors: 6 query heads, 2 KV heads, 40 rows, head dim 24.", said)
		for head := range 6 {
			x.eval(t, fmt.Sprintf(`document.getElementById("head%d").click()`, head), nil)
			requireSums(t, x, 40)
		}
	}
	var state []string
	x.eval(t, `(async () => {
		const want = { o: { data: Float32Array.of(1, 2, 3), shape: [3] }, lse: { data: Float32Array.of(-Infinity), shape: [1, 1] } };
		const got = flashkit.decode(new Uint8Array(await flashkit.encode(want).arrayBuffer()));
		return [...got].map(([name, t]) => name + t.shape + ":" + t.data).concat(document.getElementById("same").textContent, String(document.getElementById("save").hidden));
	})()`, &state)
	require.Equal(t, []string{"o3:1,2,3", "lse1,1:-Infinity", "", "false"}, state)
	good := file("F32", map[string][]int{"q": {2, 9, 8}, "k": {2, 9, 8}, "v": {2, 9, 8}})
	for _, wrong := range []struct {
		file []byte
		want string
	}{
		{nil, "not a complete safetensors file"}, {good[:7], "not a complete safetensors file"}, {good[:100], "not a complete safetensors file"}, {good[:len(good)-1], "its shape and its number of bytes"},
		{append([]byte{8, 0, 0, 0, 0, 0, 0, 0}, "12345678"...), "no tensor q"}, {append([]byte{8, 0, 0, 0, 0, 0, 0, 0}, "{]      "...), "not JSON"},
		{[]byte(strings.Replace(string(good), "[2,9,8]", "[2,9,9]", 1)), "its shape and its number of bytes"}, {[]byte(strings.Replace(string(good), `"F32"`, `"I32"`, 3)), "no tensor q"},
		{file("F32", map[string][]int{"q": {2, 9, 8}, "k": {2, 9, 8}}), "no tensor v"}, {file("F32", map[string][]int{"q": {9, 8}, "k": {9, 8}, "v": {9, 8}}), "q has the shape"},
		{file("F32", map[string][]int{"q": {2, 9, 8}, "k": {2, 8, 8}, "v": {2, 8, 8}}), "k has the shape"}, {file("F32", map[string][]int{"q": {1, 600, 1}, "k": {1, 600, 1}, "v": {1, 600, 1}}), "up to 16 heads and 512 rows"},
		{file("F32", map[string][]int{"q": {3, 9, 8}, "k": {2, 9, 8}, "v": {2, 9, 8}}), "k.shape"},
	} {
		said := choose(wrong.file)
		require.Contains(t, said, "The file was not used: ")
		require.Contains(t, said, wrong.want)
		requireSums(t, x, 40)
	}
	x.quiet(t, address, "data:", "blob:")
}

// In a browser, under a strict policy, the ES module computes all golden vectors and random problems, and
// refuses wrong arguments.
func testModule(t *testing.T, c *chromium) {
	mux := http.NewServeMux()
	for pattern, folder := range map[string]string{"/js/": "backends/wasm/js", "/kernel/": "backends/wasm/kernel", "/vectors/": "conformance/testdata"} {
		mux.Handle(pattern, http.StripPrefix(pattern, handler(filepath.Join(root, folder))))
	}
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; img-src data:")
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!DOCTYPE html><link rel="icon" href="data:,"><title>module</title><p id="live" data-state="ready">`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	files, err := filepath.Glob(filepath.Join(root, "conformance/testdata/*.safetensors.gz"))
	require.NoError(t, err)
	var names []string
	lacking := regexp.MustCompile(`^(ranges|int8|rowmax|keymass)_`) // forms that flashkit.js lacks
	files = slices.DeleteFunc(files, func(file string) bool { return lacking.MatchString(filepath.Base(file)) })
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".safetensors.gz"))
	}
	list, err := json.Marshal(names)
	require.NoError(t, err)
	x := c.openTab(t, 1440, "light")
	x.visit(t, server.URL+"/")
	var got struct {
		Cases, Runs, Wrong int
		Failures           []string
	}
	x.eval(t, fmt.Sprintf(`(async () => {
		const [flashkit, vectors, random, hostile] = await Promise.all(["flashkit.js", "test/vectors.mjs", "test/random.mjs", "test/hostile.mjs"].map(name => import("/js/" + name)));
		const attention = await flashkit.load("../kernel/kernel.wasm"), wrong = hostile.run({ ...flashkit, attention });
		const golden = await vectors.run(attention, %s, async name => (await fetch("/vectors/" + name)).arrayBuffer());
		return { ...golden, wrong: wrong.count, failures: [...golden.failures, ...wrong.failures, ...random.run(attention, %d, 10)].slice(0, 20) };
	})()`, list, rand.Uint32()), &got)
	require.Empty(t, got.Failures)
	require.Equal(t, len(files)+18, got.Cases)
	require.Greater(t, got.Runs, 4000)
	require.Greater(t, got.Wrong, 130)
	x.quiet(t, server.URL+"/", "data:")
}

// With a clock of 100 ms, the coarsest of a browser, the page repeats the call and shows a time.
func testCoarseClock(t *testing.T, c *chromium) {
	server := httptest.NewServer(handler(".."))
	t.Cleanup(server.Close)
	x := c.openTab(t, 1440, "light")
	x.call(t, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": `{ const now = performance.now.bind(performance); performance.now = () => Math.floor(now() / 100) * 100; }`}, nil)
	x.visit(t, server.URL+"/")
	var took string
	x.eval(t, `document.getElementById("took").textContent`, &took)
	require.Regexp(t, `^[0-9.]+ ms$`, took)
	require.NotRegexp(t, `^[0.]+ ms$`, took)
	require.NotEqual(t, "100.0 ms", took, "one step of the clock")
}
