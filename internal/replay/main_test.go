package replay

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
)

// TestMain is also the processes that the tests start: flashrun burn and flashrun replay.
func TestMain(m *testing.M) {
	if os.Args[0] != "flashrun" {
		os.Setenv("FLASHKIT_PROFILE", "off")
		os.Exit(m.Run())
	}
	run := map[string]func(context.Context, io.Reader, io.Writer) error{"burn": Burn, "replay": Serve}[os.Args[1]]
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "flashrun:", err)
		os.Exit(1)
	}
}

// needProcesses skips a test that starts this program again under an emulator.
func needProcesses(t *testing.T) {
	if os.Getenv("FLASHKIT_EMULATOR") != "" {
		t.Skip("this program runs in an emulator, which starts no other")
	}
}
