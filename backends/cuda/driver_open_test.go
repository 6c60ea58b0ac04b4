//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"errors"
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
