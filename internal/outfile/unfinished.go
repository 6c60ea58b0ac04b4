package outfile

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// unfinished holds the names of this program's temporary files.
var unfinished = tempFiles{names: map[string]bool{}}

type tempFiles struct {
	mu    sync.Mutex
	names map[string]bool
}

func (t *tempFiles) create(next func() string, mode fs.FileMode) (*os.File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for try := 0; ; try++ {
		name := next()
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err == nil {
			t.names[name] = true
		}
		if !errors.Is(err, fs.ErrExist) || try == 100 {
			return f, err
		}
	}
}

func (t *tempFiles) remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	os.Remove(name)
	delete(t.names, name)
}

func (t *tempFiles) rename(name, to string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := os.Rename(name, to)
	if err == nil {
		delete(t.names, name)
	}
	return err
}

// Abandon removes the temporary files of all uncommitted Files. A program calls Abandon before it
// ends because of a signal. Abandon keeps the lock, so that later calls of Create and Commit block
// and no file appears.
func Abandon() {
	unfinished.mu.Lock()
	for name := range unfinished.names {
		os.Remove(name)
	}
}
