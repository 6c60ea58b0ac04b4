package main

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

var (
	screenshots = flag.String("screenshots", "", "write pictures of the page to this `folder`")
	measured    = flag.String("measure", "", "have those race whose names contain one of these `words`, separated by commas, on four sizes")
)

// TestInABrowser uses one browser for all tests.
func TestInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("make browser runs it")
	}
	c := startChromium(t)
	for _, part := range []struct {
		name string
		test func(t *testing.T, c *chromium)
	}{
		{"page", testPage}, {"tokens", testTokens}, {"options", testOptions}, {"coarse clock", testCoarseClock}, {"own tensors", testOwnTensors}, {"module", testModule}, {"conformance", testConformance}, {"finding", testFinding},
		{"left out", testLeftOut}, {"folder", testFolder}, {"race", testRace}, {"measure", testMeasure},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, c) })
	}
}

// open serves the page and returns a tab on it.
func open(t *testing.T, c *chromium, width int, scheme string) (x *tab, address string) {
	server := httptest.NewServer(handler(".."))
	t.Cleanup(server.Close)
	x = c.openTab(t, width, scheme)
	x.visit(t, server.URL+"/")
	return x, server.URL + "/"
}

// On a phone and on a desk, light and dark: attention is there with the bits that it has in
// Go, nothing is cut, text has contrast, every control has a name, the console is empty and
// nothing is asked of others.
func testPage(t *testing.T, c *chromium) {
	for _, width := range []int{390, 1440} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprintf("%d %s", width, scheme), func(t *testing.T) {
				x, address := open(t, c, width, scheme)
				var got struct {
					State, Same, Checked string
					Tokens               int
					Dark                 bool
					Wrong                []string
				}
				x.eval(t, inspect, &got)
				require.Equal(t, "ready", got.State)
				require.Equal(t, "O has the same bits as in Go.", got.Same)
				require.Equal(t, "checked here", got.Checked)
				require.Equal(t, 121, got.Tokens)
				require.Equal(t, scheme == "dark", got.Dark)
				require.Empty(t, got.Wrong)
				requireNames(t, x)
				if *screenshots != "" {
					x.picture(t, fmt.Sprintf("%d-%s.png", width, scheme))
				}
				x.quiet(t, address, "data:", "blob:")
			})
		}
	}
}

// inspect finds faults in the page's appearance.
const inspect = `(() => {
	const wrong = [], width = innerWidth, body = getComputedStyle(document.body);
	const rgb = color => color.match(/[\d.]+/g).map(Number);
	const light = color => {
		const [r, g, b] = rgb(color).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
		return .2126 * r + .7152 * g + .0722 * b;
	};
	const contrast = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
	if (document.documentElement.scrollWidth > width) wrong.push("the page is " + document.documentElement.scrollWidth + " wide");
	for (const x of document.querySelectorAll("body *:not(svg *)")) {
		if (!x.getClientRects().length || x.closest(".scroll,pre,.skip,.aloud") && !x.matches(".scroll,pre")) continue;
		if (x.getBoundingClientRect().right > width + .5) wrong.push("cut: " + x.outerHTML.slice(0, 100));
		const s = getComputedStyle(x), own = [...x.childNodes].some(n => n.nodeType === 3 && n.data.trim());
		let back = x;
		while (back && rgb(getComputedStyle(back).backgroundColor)[3] === 0) back = back.parentElement;
		if (own && !x.matches(".token") && contrast(s.color, back ? getComputedStyle(back).backgroundColor : body.backgroundColor) < 4.5) wrong.push("contrast: " + x.outerHTML.slice(0, 100));
		if (own && parseFloat(s.fontSize) < 11.5) wrong.push("small: " + x.outerHTML.slice(0, 100));
	}
	const byId = id => document.getElementById(id);
	return { state: byId("live").dataset.state, same: byId("same").textContent, checked: byId("hash-checked").textContent, tokens: document.querySelectorAll(".token").length,
		dark: matchMedia("(prefers-color-scheme: dark)").matches, wrong };
})()`

// requireNames reads the accessibility tree: every control, and every picture, has a name.
func requireNames(t *testing.T, x *tab) {
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
		}
	}
	x.call(t, "Accessibility.getFullAXTree", nil, &tree)
	controls := map[string]int{}
	for _, n := range tree.Nodes {
		role, _ := n.Role.Value.(string)
		switch role {
		case "button", "link", "checkbox", "radio", "combobox", "textbox", "progressbar", "img", "image", "region", "table", "heading", "MenuListPopup":
			name, _ := n.Name.Value.(string)
			if role != "MenuListPopup" && role != "table" {
				require.NotEmpty(t, strings.TrimSpace(name), "a %s without a name", role)
			}
			if !n.Ignored {
				controls[role]++
			}
		}
	}
	require.GreaterOrEqual(t, controls["button"], 121+3, "%v", controls)
	require.Equal(t, 5, controls["combobox"], "%v", controls)
	require.Equal(t, len(heads), controls["radio"], "%v", controls)
	require.GreaterOrEqual(t, controls["checkbox"], len(engines), "%v", controls)
}

func (x *tab) picture(t *testing.T, name string) {
	var shot struct{ Data string }
	x.call(t, "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "format": "png"}, &shot)
	b, err := base64.StdEncoding.DecodeString(shot.Data)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(*screenshots, name), b, 0o644))
}

// Arrow keys select tokens, and each token shows its attention.
func testTokens(t *testing.T, c *chromium) {
	x, _ := open(t, c, 1440, "light")
	said := func() (text string) {
		x.eval(t, `document.getElementById("said").textContent`, &text)
		return text
	}
	key := func(name string) {
		for _, event := range []string{"keyDown", "keyUp"} {
			x.call(t, "Input.dispatchKeyEvent", map[string]any{"type": event, "key": name, "code": name}, nil)
		}
	}
	require.True(t, strings.HasPrefix(said(), "“"+first+"” attends to "), said())
	x.eval(t, `document.querySelector(".token.asks").focus()`, nil)
	key("Home")
	require.True(t, strings.HasPrefix(said(), "“[CLS]” attends to "), said())
	key("ArrowRight")
	require.True(t, strings.HasPrefix(said(), "“it” attends to "), said())
	before := said()
	var aloud string
	x.eval(t, `document.getElementById("aloud").textContent`, &aloud)
	require.Equal(t, before, aloud)
	x.eval(t, `document.getElementById("head1").click()`, nil)
	require.NotEqual(t, before, said(), "another head")
	var sums []float64
	x.eval(t, `[...document.querySelectorAll(".token")].map((b, i) => { b.dispatchEvent(new Event("pointerenter")); return [...document.querySelectorAll("#row rect")].reduce((n, r) => n + r.height.baseVal.value, 0) })`, &sums)
	require.Len(t, sums, 121)
	for _, s := range sums {
		require.Greater(t, s, 56.0, "the largest weight fills the height")
	}
}

// Every vector passes on every module.
func testConformance(t *testing.T, c *chromium) {
	x, address := open(t, c, 1440, "light")
	passed, failed, findings := conform(t, x)
	v, err := readVectors(root)
	require.NoError(t, err)
	require.Greater(t, len(v.Cases), 30)
	require.Equal(t, len(v.Cases)*len(engines)*2, passed)
	require.Zero(t, failed)
	require.Empty(t, findings)
	var state string
	x.eval(t, `document.getElementById("conformance").dataset.state`, &state)
	require.Equal(t, "passed", state)
	if *screenshots != "" {
		x.picture(t, "conformance.png")
	}
	x.quiet(t, address, "data:", "blob:")
}

// conform runs the vectors, and returns the counts and the first finding.
func conform(t *testing.T, x *tab) (passed, failed int, finding map[string]any) {
	x.eval(t, `document.getElementById("check").click()`, nil)
	x.until(t, `document.getElementById("check").textContent === "Run again"`)
	var text string
	x.eval(t, `document.getElementById("passed").textContent + " " + document.getElementById("failed").textContent`, &text)
	_, err := fmt.Sscan(text, &passed, &failed)
	require.NoError(t, err)
	if x.eval(t, `document.getElementById("finding").textContent`, &text); text != "" {
		require.NoError(t, json.Unmarshal([]byte(text), &finding))
	}
	return passed, failed, finding
}

// A module with wrong results is detected, and the finding shows the error and its position.
func testFinding(t *testing.T, c *chromium) {
	wasm, err := os.ReadFile(filepath.Join(root, engines[0].file))
	require.NoError(t, err)
	log2e := string([]byte{0x43, 0x3b, 0xaa, 0xb8, 0x3f}) // f32.const of log2(e)
	require.Contains(t, string(wasm), log2e)
	broken := []byte(strings.ReplaceAll(string(wasm), log2e, string([]byte{0x43, 0x3b, 0xaa, 0xb0, 0x3f})))
	x := openWith(t, c, engine{Name: "broken.wasm", SHA256: hash(broken), Wasm: pack(broken), Bytes: len(broken)})
	var same string
	x.eval(t, `document.getElementById("same").textContent`, &same)
	require.Contains(t, same, "O differs from that in Go")
	_, failed, finding := conform(t, x)
	require.Positive(t, failed)
	require.Equal(t, hash(broken), finding["sha256"])
	for _, key := range []string{"case", "catches", "problem", "engine", "kernel", "output", "index", "got", "want", "error", "bound", "browser"} {
		require.Contains(t, finding, key)
	}
	require.Contains(t, []any{"o", "lse", "dq", "dk", "dv"}, finding["output"])
}

// openWith returns a tab on the page with other engines.
func openWith(t *testing.T, c *chromium, list ...engine) *tab {
	text, err := script("engines", list)
	require.NoError(t, err)
	files := handler("..")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/data/engines.js" {
			files.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/javascript")
		w.Write(text)
	}))
	t.Cleanup(server.Close)
	x := c.openTab(t, 1440, "light")
	x.visit(t, server.URL+"/")
	return x
}

// A module that the browser does not support, or with a wrong hash, is skipped. Others run.
func testLeftOut(t *testing.T, c *chromium) {
	list, err := readEngines(root)
	require.NoError(t, err)
	future := []byte("\x00asm\x02\x00\x00\x00")
	x := openWith(t, c, list[0], engine{Name: "future.wasm", SHA256: hash(future), Wasm: pack(future)}, engine{Name: "other.wasm", SHA256: hash(nil), Wasm: list[0].Wasm})
	passed, failed, _ := conform(t, x)
	v, err := readVectors(root)
	require.NoError(t, err)
	require.Equal(t, []int{len(v.Cases) * 2, 0}, []int{passed, failed})
	var verdict string
	x.eval(t, `document.getElementById("verdict").textContent`, &verdict)
	require.Contains(t, verdict, "this browser cannot run future.wasm")
	require.Contains(t, verdict, "other.wasm has the SHA-256 "+list[0].SHA256)
	x.until(t, `["future.wasm", "other.wasm"].every(name => [...document.querySelectorAll("#racers input")].some(box => box.disabled && box.labels[0].textContent.includes(name)))`)
	var state string
	x = openWith(t, c, engine{Name: "future.wasm", SHA256: hash(future), Wasm: pack(future)})
	conform(t, x)
	x.eval(t, `document.getElementById("conformance").dataset.state`, &state)
	require.Equal(t, "failed", state, "nothing was run")
}

// The page works from a folder: attention, conformance and a race, with copies.
func testFolder(t *testing.T, c *chromium) {
	path, err := filepath.Abs("..")
	require.NoError(t, err)
	address := (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
	x := c.openTab(t, 1440, "light")
	x.visit(t, address+"/index.html")
	var same string
	x.eval(t, `document.getElementById("same").textContent`, &same)
	require.Equal(t, "O has the same bits as in Go.", same)
	_, failed, _ := conform(t, x)
	require.Zero(t, failed)
	race(t, x, 256, 64, "kernel.wasm")
	x.quiet(t, address+"/", "data:", "blob:")
}

// Our modules race with shared memory, and so does onnxruntime-web if make site-ort has installed
// it.
func testRace(t *testing.T, c *chromium) {
	x, address := open(t, c, 390, "dark")
	times := race(t, x, 256, 64, "wasm")
	require.GreaterOrEqual(t, len(times), len(engines))
	require.Equal(t, "kernel.wasm, 1 worker", times[0].Name)
	x.quiet(t, address, "data:", "blob:")
	x.eval(t, `document.getElementById("copy-times").click()`, nil)
	x.until(t, `document.getElementById("copy-times").textContent === "Copied" || document.querySelector("textarea").value.includes("| kernel.wasm, 1 worker |")`)
	if *screenshots != "" {
		x.picture(t, "race.png")
	}
	if _, err := os.Stat("../ort"); err != nil {
		t.Skip("onnxruntime-web is not here: make site-ort installs it")
	}
	times = race(t, x, 256, 32, "1 worker", "1 thread")
	require.Len(t, times, len(engines)+1)
	require.Contains(t, times[len(engines)].Name, "onnxruntime-web")
	x.quiet(t, address, "data:", "blob:")
}

type raced struct {
	Name  string
	Calls int
	Rate  float64
}

// race races the entries whose names contain one of the words.
func race(t *testing.T, x *tab, length, dim int, words ...string) (times []raced) {
	list, err := json.Marshal(words)
	require.NoError(t, err)
	x.eval(t, fmt.Sprintf(`(() => {
		const $ = id => document.getElementById(id);
		$("length").value = %d, $("dim").value = %d;
		for (const box of document.querySelectorAll("#racers input")) box.checked = %s.some(word => box.labels[0].querySelector("b").textContent.includes(word));
		$("start").click();
	})()`, length, dim, list), nil)
	x.until(t, `!["running", undefined].includes(document.getElementById("race").dataset.state)`)
	var state []string
	x.eval(t, `[document.getElementById("race").dataset.state, document.getElementById("race-state").textContent]`, &state)
	require.Equal(t, "done", state[0], state[1])
	x.eval(t, `[...document.getElementById("times").tBodies[0].rows].map(r => ({name: r.cells[0].textContent, calls: +r.cells[4].textContent, rate: +r.cells[5].textContent}))`, &times)
	for _, r := range times {
		require.GreaterOrEqual(t, r.Calls, 15, r.Name)
		require.Positive(t, r.Rate, r.Name)
	}
	return times
}

// With -measure, the page's race is a measurement.
func testMeasure(t *testing.T, c *chromium) {
	if *measured == "" {
		t.Skip("-measure names who races")
	}
	x, _ := open(t, c, 1440, "light")
	for _, dim := range []int{64, 128} {
		for _, length := range []int{512, 1024} {
			times := race(t, x, length, dim, strings.Split(*measured, ",")...)
			for _, r := range times {
				t.Logf("T %d D %d %s: %.1f GFLOP/s, %.2f of the first, %d calls", length, dim, r.Name, r.Rate, r.Rate/times[0].Rate, r.Calls)
			}
		}
	}
}
