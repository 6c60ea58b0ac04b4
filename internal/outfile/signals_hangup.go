//go:build !js

package outfile

import (
	"os"
	"syscall"
)

var hangUp = []os.Signal{syscall.SIGHUP}
