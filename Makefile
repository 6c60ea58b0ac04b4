# The commands that a person or CI types. `make` lists them.

include tools/common.mk

SHORT ?= # race: -short leaves out what takes minutes under the race detector
PACKAGES ?= ./... # test, race

# Platforms to build for. Vet reads the tests, too, on this one and on one of each kind: with 32 bits and the files of tags purego and
# nocuda, with NEON, without Unix.
PLATFORMS := linux/amd64 linux/arm64 linux/386 darwin/arm64 windows/amd64 js/wasm
VETTED    := linux/386 darwin/arm64 windows/amd64

# A folder's Makefile has the targets that serve it; `make` here passes them on.
FOLDERS := backends/cuda backends/simd backends/wasm bench/peers capi capi/python conformance docs docs/site nn nn/encoder nn/tokenizer ring tools/arm64
backends/cuda   := cuda cuda-check gpu-test costs gorgoniacu
backends/simd   := asm emulate emulate-amx
backends/wasm   := wasm toolchain js
bench/peers     := peers peers-random peers-forms peers-matmul peers-encoders peers-precisions long-rows
capi            := capi capi-install capi-uninstall bindings
capi/python     := python wheel
conformance     := vectors verify verify-int8 verify-sample judge field-report exports exports-sample onnx torch-values
docs            := docs report-example
docs/site       := site site-ort site-serve site-publish browser
nn              := nn-vectors nn-values postnorm-vectors rotary-vectors lm-torch
nn/encoder      := verify-minilm verify-encoder verify-encoder-sample
nn/tokenizer    := wordpiece-vectors verify-wordpiece verify-components tokenizer-classes model-vectors verify-models
ring            := ring ring-nccl
tools/arm64     := test-arm64 arm64-counts arm64-products arm64-cycles

.PHONY: run test test-long build check static race fuzz bench generate release release-check clean
.PHONY: fmt vet cross lint tidy vulnerabilities drift $(foreach f,$(FOLDERS),$($(f)))

run: ## build flashrun and run it on the embedded sample
	$(GO) run ./cmd/flashrun run

test: ## every package's tests, conformance of every kernel included, in a minute or two
	$(GO) test $(if $(LONG),,-short) $(LIMIT) $(PACKAGES)

test-long: ## and what takes minutes: long sweeps, the guides, whole ranges of values
	$(MAKE) test LONG=yes

build: ## bin/flashrun, one file
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/flashrun ./cmd/flashrun

check: static drift ## everything static: format, vet, cross builds, lint, known vulnerabilities, drift

static: fmt cross vet lint tidy vulnerabilities ## check without drift, which remakes files that others read

race: ## every test under the race detector; needs a C compiler
	CGO_ENABLED=1 $(GO) test -race $(LIMIT) $(SHORT) $(PACKAGES)

fuzz: ## every fuzz target for FUZZTIME
	@for dir in $$($(GO) list -f '{{.Dir}}' ./...); do \
		for target in $$(cat $$dir/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p'); do \
			echo "fuzz $${dir#$(ROOT)} $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$dir || exit 1; \
		done; \
	done

bench: ## the portable kernels on one core and on all; the overhead of dispatch
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench . -benchtime 2s ./backends/simd
	$(GO) test -run '^$$' -bench . -benchtime 2s ./backends/simd
	$(GO) test -run '^$$' -bench . ./dispatch

generate: asm wasm vectors bindings costs docs site ## remake everything generated

release: ## dist: archives of flashrun for six platforms, a static program, the golden vectors, a bill of materials, checksums, all of the commit that is checked out
	tools/release.sh dist

release-check: release ## unpack dist, compare it with a second run, and run the static program in an empty root, or in a container
	tools/release-check.sh dist

clean:
	rm -rf bin dist $(VENV)
	$(MAKE) -C backends/cuda/gorgoniacu clean

# The parts of check.

fmt:
	@list=$$(gofmt -l .); test -z "$$list" || { echo "$$list" >&2; exit 1; }

# Many short processes end before a collection of garbage pays.
vet cross: export GOGC = 400

# Vet compiles all packages but programs. Code for other platforms never runs here, so it need not be fast.
QUICK := '-gcflags=all=-N -l'

vet:
	$(GO) vet ./...

cross:
	@for p in $(filter-out $(shell $(GO) env GOOS)/$(shell $(GO) env GOARCH),$(PLATFORMS)); do \
		echo "cross $$p"; \
		export GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0; \
		case ' $(VETTED) ' in *" $$p "*) $(GO) vet $(QUICK) ./... && $(GO) build $(QUICK) -o /dev/null ./cmd/flashrun;; *) $(GO) build $(QUICK) ./...;; esac || exit 1; \
	done
	for tag in purego nocuda nowasm; do $(GO) build -tags $$tag -o /dev/null ./cmd/flashrun ./examples/lm || exit 1; done

lint:
	$(GO) run $(STATICCHECK) ./...

tidy:
	$(GO) mod tidy -diff

# VULNDB is the address of another database than that of Go's vulnerabilities.
vulnerabilities:
	GO=$(GO) tools/vulnerabilities.sh $(GOVULNCHECK) $(if $(VULNDB),-db $(VULNDB)) ./...

GENERATED := conformance/testdata conformance/vectors/manifest.json backends/simd backends/cuda/costs.go internal/matmul internal/elements backends/wasm docs/man docs/completions \
	docs/report docs/figures docs/site capi docs/kernels.md docs/gpu-kernels.md docs/library.md docs/performance.md README.md THIRD_PARTY_NOTICES.md

drift: generate
	@list=$$(git status --porcelain -- $(GENERATED)); test -z "$$list" || { echo "$$list" >&2; exit 1; }

define passed
$($(1)):
	@$$(MAKE) --no-print-directory -C $(1) $$@
endef
$(foreach f,$(FOLDERS),$(eval $(call passed,$(f))))
