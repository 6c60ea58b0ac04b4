package outfile

import "os"

var hangUp []os.Signal // a browser has no terminal
