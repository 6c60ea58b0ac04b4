package outfile

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals returns the signals that end a program early: SIGINT, SIGTERM and SIGHUP. SIGHUP is not
// in the list if the system lacks it or nohup ignores it.
func Signals() []os.Signal {
	list := []os.Signal{os.Interrupt, syscall.SIGTERM}
	for _, s := range hangUp {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}
