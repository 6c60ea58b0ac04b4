package main

import (
	"os/exec"
	"runtime"
	"sync"
)

// where has the folder of a section's commands, or of a page's. It is $WORK for others.
var where = map[string]string{
	"quickstart#Install":                   "$REPOSITORY",
	"quickstart#First call":                "$WORK/first",
	"flashrun#Manual pages and completion": "$REPOSITORY",
	"library#Your own backend":             "$WORK/mine",
	"limits#Programs that do not start":    "$WORK/hello",
	"profiling":                            "$REPOSITORY",
	"developer-guide":                      "$REPOSITORY",
}

// notRun are the commands that no test can run, and why.
var notRun = map[string]string{
	"go install github.com/flashkit-go/flashkit/cmd/flashrun@latest": "it fetches what is published",
	"man -l docs/man/flashrun.1":                                     "it needs man and a terminal; TestDocs holds the page",
	"sudo install -m 644 docs/man/*.1 /usr/local/share/man/man1":     "it writes to the system",
	"make test":        "it is this test, and takes minutes",
	"make test-long":   "it is this test, and takes minutes",
	"make race":        "it takes minutes",
	"make emulate":     "it needs QEMU and takes minutes",
	"make emulate-amx": "it needs a C compiler, and is a step of CI",
	"make bench":       "it takes minutes",
	"GODEBUG=cpu.avx512f=off,cpu.avx2=off make test":                                                                              "it is this test, and takes minutes",
	"FLASHKIT_SWEEP=1000 go test -run TestConformance ./backends/simd":                                                            "it takes minutes",
	"go test ./cmd/flashrun -run TestGuides -count=1 -timeout 1h -write-docs":                                                     "it is this test",
	`FLASHKIT_FIT="$PWD/choice.log" FLASHKIT_FIT_CHECK="$PWD/other.log" go test ./backends/cuda -count=1 -run 'TestFitCosts$' -v`: "it needs times of a GPU, and writes sources",
}

// instead has what a test runs in place of a command.
var instead = map[string]string{
	"go get github.com/flashkit-go/flashkit": "cp ../hello/* hello", // a module that has this repository in place of what is published
	"go run .":                               "go run -C hello .",
}

// needs says what this machine lacks for commands with a part.
var needs = []struct {
	part    string
	missing func() string
}{
	{"GODEBUG=cpu.avx", func() string {
		if runtime.GOARCH != "amd64" {
			return "it is for amd64"
		}
		return ""
	}},
	{"Kernels/simd/fwd_avx512/", avx512Missing},
	{"bin/cpu.prof", avx512Missing}, // what the benchmark above writes
	{"bin/perf.data", avx512Missing},
	{"perf ", perfMissing},
	{"ldd ", func() string { return notFound("ldd") }},
	{"nsys ", func() string { return "it needs a GPU" }},
	{"ncu ", func() string { return "it needs a GPU" }},
	{"bin/gpu/", func() string { return "it needs a GPU" }},
}

func avx512Missing() string {
	if here, _ := ofThisMachine(); !here["simd/fwd_avx512"] {
		return "this machine lacks simd/fwd_avx512"
	}
	return ""
}

func notFound(tool string) string {
	if _, err := exec.LookPath(tool); err != nil {
		return err.Error()
	}
	return ""
}

// perfMissing tells whether perf is there and may sample.
var perfMissing = sync.OnceValue(func() string {
	if out, err := exec.Command("perf", "record", "-q", "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		return "perf: " + err.Error() + ": " + string(out)
	}
	return ""
})
