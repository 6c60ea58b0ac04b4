package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chromiumPath returns the browser of FLASHKIT_BROWSER, or else one on the path. Without either it
// skips the test; a wrong name fails. It also skips with -short: tests take seconds.
func chromiumPath(t *testing.T) string {
	if testing.Short() {
		t.Skip("half a minute: make browser runs it")
	}
	if name := os.Getenv("FLASHKIT_BROWSER"); name != "" {
		path, err := exec.LookPath(name)
		require.NoError(t, err, "FLASHKIT_BROWSER")
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium here: make browser installs one, and FLASHKIT_BROWSER names one")
	return ""
}

// A chromium is a headless browser that speaks the DevTools protocol over a pipe.
type chromium struct {
	to *os.File

	mu      sync.Mutex
	last    int
	answers map[int]chan message
	listen  func(m message) // events
}

type message struct {
	ID      int             `json:"id"`
	Session string          `json:"sessionId"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// startChromium starts a browser for the time of the test.
func startChromium(t *testing.T) *chromium {
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, chromiumPath(t), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	theirIn, to, err := os.Pipe()
	require.NoError(t, err)
	from, theirOut, err := os.Pipe()
	require.NoError(t, err)
	cmd.ExtraFiles, cmd.WaitDelay = []*os.File{theirIn, theirOut}, 10*time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	theirIn.Close()
	theirOut.Close()
	c := &chromium{to: to, answers: map[int]chan message{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.read(bufio.NewReader(from))
	}()
	t.Cleanup(func() {
		to.Close() // a browser without its pipe ends
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			cancel()
			<-ended
		}
		cancel()
		<-read
		from.Close()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	return c
}

func (c *chromium) read(r *bufio.Reader) {
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			c.mu.Lock()
			for _, answer := range c.answers {
				close(answer)
			}
			c.answers = nil
			c.mu.Unlock()
			return
		}
		var m message
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		c.mu.Lock()
		if answer := c.answers[m.ID]; answer != nil {
			answer <- m
			delete(c.answers, m.ID)
		} else if c.listen != nil {
			c.listen(m)
		}
		c.mu.Unlock()
	}
}

// call sends a command and returns its result.
func (c *chromium) call(t *testing.T, session, method string, params, result any) {
	t.Helper()
	c.mu.Lock()
	require.NotNil(t, c.answers, "the browser has ended")
	c.last++
	id, answer := c.last, make(chan message, 1)
	c.answers[id] = answer
	c.mu.Unlock()
	command := map[string]any{"id": id, "method": method, "params": params}
	if session != "" {
		command["sessionId"] = session
	}
	text, err := json.Marshal(command)
	require.NoError(t, err)
	_, err = c.to.Write(append(text, 0))
	require.NoError(t, err)
	select {
	case m, ok := <-answer:
		require.True(t, ok, "%s: the browser has ended", method)
		require.Nil(t, m.Error, "%s: %+v", method, m.Error)
		if result != nil {
			require.NoError(t, json.Unmarshal(m.Result, result))
		}
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s: no answer", method)
	}
}

// A tab is an open page and a record of its events.
type tab struct {
	c       *chromium
	session string

	mu       sync.Mutex
	sessions map[string]bool // sessions of the page and its workers
	requests []string
	noise    []string // of the console, and errors
}

// openTab opens an empty page of a width.
func (c *chromium) openTab(t *testing.T, width int, scheme string) *tab {
	var target struct{ TargetID string }
	c.call(t, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	c.call(t, "", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	x := &tab{c: c, session: attached.SessionID, sessions: map[string]bool{attached.SessionID: true}}
	c.mu.Lock()
	c.listen = x.hear
	c.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility"} {
		x.call(t, domain+".enable", nil, nil)
	}
	x.call(t, "Target.setAutoAttach", map[string]any{"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true}, nil)
	x.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}, nil)
	x.call(t, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	t.Cleanup(func() {
		c.call(t, "", "Target.closeTarget", map[string]any{"targetId": target.TargetID}, nil)
	})
	return x
}

// hear records requests and messages of the page and its workers.
func (x *tab) hear(m message) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.sessions[m.Session] {
		return // of a page that was closed
	}
	switch m.Method {
	case "Target.attachedToTarget": // a worker, also recorded
		var p struct{ SessionID string }
		json.Unmarshal(m.Params, &p)
		x.sessions[p.SessionID] = true
		for _, domain := range []string{"Network", "Runtime"} {
			fmt.Fprintf(x.c.to, `{"id":0,"sessionId":%q,"method":"%s.enable"}`+"\x00", p.SessionID, domain)
		}
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		json.Unmarshal(m.Params, &p)
		x.requests = append(x.requests, p.Request.URL)
	case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
		x.noise = append(x.noise, string(m.Params))
	}
}

func (x *tab) call(t *testing.T, method string, params, result any) {
	t.Helper()
	x.c.call(t, x.session, method, params, result)
}

// eval returns the value of a JavaScript expression, awaiting a promise.
func (x *tab) eval(t *testing.T, expression string, result any) {
	t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	x.call(t, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	require.Empty(t, string(r.ExceptionDetails), expression)
	if result != nil {
		require.NoError(t, json.Unmarshal(r.Result.Value, result), "%s gives %s", expression, r.Result.Value)
	}
}

// until waits for a condition, and fails after a minute.
func (x *tab) until(t *testing.T, condition string) {
	t.Helper()
	var met bool
	x.eval(t, `new Promise(done => { const end = Date.now() + 60000, ask = () => { try { if (`+condition+`) return done(true) } catch {} Date.now() > end ? done(false) : setTimeout(ask, 20) }; ask() })`, &met)
	require.True(t, met, condition)
}

// visit opens an address and waits until attention is on the page.
func (x *tab) visit(t *testing.T, address string) {
	t.Helper()
	x.call(t, "Page.navigate", map[string]any{"url": address}, nil)
	x.until(t, `document.readyState === "complete" && document.getElementById("live").dataset.state`)
	var after float64
	x.eval(t, `performance.now()`, &after)
	t.Logf("attention is on the page %.0f ms after it was asked for, at most", after)
}

// quiet fails if the page logged a message, or requested a URL without one of the prefixes.
func (x *tab) quiet(t *testing.T, starts ...string) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	require.Empty(t, x.noise, "the console stays empty")
	require.NotEmpty(t, x.requests)
	for _, url := range x.requests {
		ok := false
		for _, start := range starts {
			ok = ok || strings.HasPrefix(url, start)
		}
		require.True(t, ok, "the page asked for %s", url)
	}
}
