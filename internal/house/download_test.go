package house

import (
	"archive/zip"
	"cmp"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The limits on the download of this module in bytes: GPU images, which are compressed, and other
// files. Of the images, 145,000 bytes are the instances for ranges of keys and row maxima, which no
// other instance can replace.
const (
	images     = "backends/cuda/images"
	mostImages = 11_340_000
	mostOthers = 7_160_000
)

// A counter counts bytes.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// go get downloads a zip of all tracked files outside nested modules. The test limits it and prints
// its largest folders.
func TestDownload(t *testing.T) {
	files := tracked(t)
	var all counter
	sizes := map[string]int64{}
	z := zip.NewWriter(&all)
	for _, file := range files {
		if nested(files, file) {
			continue
		}
		before := all
		w, err := z.Create(module + "@v0.0.0/" + file)
		require.NoError(t, err)
		f, err := os.Open(file)
		require.NoError(t, err)
		_, err = io.Copy(w, f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, z.Flush())
		sizes[path.Dir(file)] += int64(all - before)
	}
	require.NoError(t, z.Close())
	folders := make([]string, 0, len(sizes))
	for folder := range sizes {
		folders = append(folders, folder)
	}
	slices.SortFunc(folders, func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	report := fmt.Sprintf("go get downloads %.2f MB:", float64(all)/1e6)
	for _, folder := range folders[:20] {
		report += fmt.Sprintf("\n%9d %s", sizes[folder], folder)
	}
	t.Log(report)
	require.LessOrEqual(t, sizes[images], int64(mostImages))
	require.LessOrEqual(t, int64(all)-sizes[images], int64(mostOthers))
}

// nested reports whether a file is in a nested module.
func nested(files []string, file string) bool {
	for folder := path.Dir(file); folder != "."; folder = path.Dir(folder) {
		if slices.Contains(files, folder+"/go.mod") {
			return true
		}
	}
	return false
}
