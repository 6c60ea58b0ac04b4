//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOldLibrary(t *testing.T) {
	without := func(missing string) error {
		var c calls
		return c.bind(func(name string) (uintptr, error) {
			if name == missing {
				return 0, errors.New("no such symbol")
			}
			return 1, nil
		})
	}
	require.NoError(t, without("cuTensorMapEncodeTiled"), "the version will say that it is too old")
	require.EqualError(t, without("cuLaunchKernel"), "missing cuLaunchKernel")
}

// An error names the library, whatever thread the goroutine is on when it asks for the text.
func TestMissingLibraryIsNamed(t *testing.T) {
	if _, err := openLibrary(); err == nil || runtime.GOOS != "linux" {
		t.Skip("needs Linux without a driver")
	}
	var done sync.WaitGroup
	for range 64 {
		done.Go(func() {
			for range 200 {
				if _, err := openLibrary(); err == nil || !strings.Contains(err.Error(), "libcuda.so.1") {
					t.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
}
