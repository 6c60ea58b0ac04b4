package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asServer is the variable of the environment that makes this test a server, with
// its value as flags.
const asServer = "EXAMPLE_SERVER"

func TestMain(m *testing.M) {
	if flags := os.Getenv(asServer); flags != "" {
		os.Args = append(os.Args[:1], strings.Fields(flags)...)
		main()
		return
	}
	os.Exit(m.Run())
}

// A process is a server in a process of its own.
type process struct {
	*client
	*exec.Cmd
}

func newProcess(t testing.TB) *process {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), asServer+"=-addr localhost:0")
	out, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, url, found := strings.Cut(strings.TrimSpace(line), "listening on ")
	require.True(t, found, line)
	return &process{newClient(t, url), c}
}

// memory returns the maximum memory of a process in MiB, 0 if unknown.
func memory(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	kib, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	n, _ := strconv.Atoi(kib)
	return float64(n) / 1024
}

// SIGTERM ends the program, with status 0, after it has answered.
func TestSIGTERM(t *testing.T) {
	if runtime.GOOS == "windows" || runtime.GOOS == "js" || testing.Short() && runtime.GOOS != "linux" {
		t.Skip("no signals between processes")
	}
	p := newProcess(t)
	x := answered(t, "b1-h2-g1-n300-m500-d32-f32-causal")
	errs := make(chan error, 1)
	go func() {
		o, err := p.attend(t.Context(), x.p, 0, x.body)
		if diff := x.differ(o); err == nil && diff != "" {
			err = fmt.Errorf("%s", diff)
		}
		errs <- err
	}()
	require.NoError(t, <-errs)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}
