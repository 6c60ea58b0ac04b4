package house

import (
	"os"
	"sync"
	"testing"
)

// TestMain runs the tests in the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// enter changes to the root once more. go test sees a change of folder only while tests run. Without
// one it looks for the files that tests read in this folder, and cached results outlive changes.
var enter = sync.OnceFunc(func() {
	if err := os.Chdir("."); err != nil {
		panic(err)
	}
})
