package mpi

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/flashkit-go/flashkit/ring"
)

// watchedVar is the environment variable that marks a process as the rerun of another process.
const watchedVar = "FLASHKIT_WATCHED"

// Watch reports which rank died. mpiexec also reports dead processes, but it may name a process
// that mpiexec itself ended. A program calls Watch before anything else.
//
// If a launcher such as mpiexec started the process as one of several ranks, Watch reruns the
// program with the same arguments, input and output. If the rerun fails, Watch writes the rank to
// stderr. It returns the rerun's exit status, for os.Exit, and true. In the rerun, and without a
// launcher, Watch returns false.
func Watch(stderr io.Writer) (status int, watched bool) {
	launch, err := ring.Launched(os.Getenv)
	if err != nil || launch.Launcher == "" || launch.Size < 2 || os.Getenv(watchedVar) != "" {
		return 0, false
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false
	}
	runtime.LockOSThread() // the child is killed when the thread that started it ends
	defer runtime.UnlockOSThread()
	c := exec.Command(self, os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), watchedVar+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return 0, false
	}
	if err := c.Wait(); err != nil {
		fmt.Fprintf(stderr, "rank %d of %d, process %d: %v\n", launch.Rank, launch.Size, c.Process.Pid, err)
		return max(1, c.ProcessState.ExitCode()), true
	}
	return 0, true
}
