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

// watchedVar tells a process that another watches it.
const watchedVar = "FLASHKIT_WATCHED"

// Watch has somebody left to say which rank died: mpiexec says which process it found ended,
// but may have ended it itself. A program calls it first of all. In a process that mpiexec
// started it runs the program again with the same arguments, input and output, and when that
// ends in any way but well, says so on stderr with the rank, and returns its status for
// os.Exit and true. In the program that it runs, and without mpiexec, it returns false.
func Watch(stderr io.Writer) (status int, watched bool) {
	launch, err := ring.Launched(os.Getenv)
	if err != nil || launch.Launcher == "" || launch.Size < 2 || os.Getenv(watchedVar) != "" {
		return 0, false
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false
	}
	runtime.LockOSThread() // the child dies with the thread that started it
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
