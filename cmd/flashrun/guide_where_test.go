package main

import (
	"os/exec"
	"runtime"
	"sync"
)

// where maps sections or pages to the folders of their commands. The default is $WORK.
var where = map[string]string{
	"quickstart#Install":                   "$REPOSITORY",
	"quickstart#First call":                "$WORK/first",
	"flashrun#Manual pages and completion": "$REPOSITORY",
	"library#Your own backend":             "$WORK/mine",
	"limits#Programs that do not start":    "$WORK/hello",
	"profiling":                            "$REPOSITORY",
	contributing:                           "$REPOSITORY",
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
	"make check":       "it fetches tools and takes minutes",
	"make fuzz":        "it takes minutes",
	"make verify":      "it needs Python and installs NumPy",
	"make bench":       "it takes minutes",
	"GODEBUG=cpu.avx512f=off,cpu.avx2=off make test":                                                                              "it is this test, and takes minutes",
	"FLASHKIT_SWEEP=1000 go test -run TestConformance ./backends/simd":                                                            "it takes minutes",
	"go test ./cmd/flashrun -run TestGuides -count=1 -timeout 1h -write-docs":                                                     "it is this test",
	`FLASHKIT_FIT="$PWD/choice.log" FLASHKIT_FIT_CHECK="$PWD/other.log" go test ./backends/cuda -count=1 -run 'TestFitCosts$' -v`: "it needs times of a GPU, and writes sources",
}

// instead maps commands to their replacements in tests.
var instead = map[string]string{
	"go get github.com/flashkit-go/flashkit/dispatch": "cp ../hello/* hello", // a module that uses this repository in place of the published one
	"go run .": "go run -C hello .",
}

// needs maps parts of commands to requirements that this machine lacks.
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
	{"bin/cpu.prof", avx512Missing}, // output of the benchmark above
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
