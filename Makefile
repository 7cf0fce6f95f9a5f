# make demo       set up, then tune a real kernel: measured where a GPU is, predicted elsewhere
# make test       set up, then run the tests that need no GPU
# make test-long  the longest of them, which make test leaves out: whole runs, a quarter of an hour
# make test-gpu   the tests that need one
# make test-versions  the tests of languages and compilers with the oldest Triton and the newest CUDA toolkit
# make test-cutedsl  the tests of kernels in CuTe DSL, in a further environment (260 MB, NVIDIA's own licence)
# make test-ray   the tests of --on ray, in a further environment (290 MB)
# make test-hosts the MCP server and the plugin with Claude Code, Codex, Gemini CLI and MCP's own tools (npm, 1.2 GB)
# make check      lint, format, types, import direction, documents
#
# Setup goes into the active virtual environment, or else into .venv. To use an interpreter as it is
# and install nothing: make test-gpu TILEWRIGHT_PYTHON=python3

.PHONY: setup demo lint check test test-long test-gpu test-hosts test-versions test-cutedsl test-ray
.DELETE_ON_ERROR:

# One exact version. It is installed first, so that nothing else pulls the CUDA build (gigabytes) onto
# a machine without a GPU. Tilewright works without torch; some of its tests do not.
TORCH := 2.13.0
# Its kernels are tested and tuned; what it needs beside torch and cuda-tile they do not (pyproject.toml).
TILEGYM := 1.5.1
# Kernels in Triton are compiled without a GPU. Python 3.10 gets 3.6, newer ones 3.9.
TRITON := triton>=3.6,<3.10
# The versions of `make test-versions`: the oldest supported Triton, and a CUDA toolkit newer than cuda-tile's own.
OTHERS := triton==3.6.0 nvidia-cuda-tileiras==13.5.37 nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37
VERSIONS_TESTS := tests/languages tests/compile tests/runtime/patch
SOURCES := src tests examples bench

ifdef TILEWRIGHT_PYTHON
PY := $(TILEWRIGHT_PYTHON)
export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
setup: ;
else
VENV := $(or $(VIRTUAL_ENV),$(CURDIR)/.venv)
PY := $(VENV)/bin/python
# Named after this checkout: the environment may be shared, the editable install is not.
STAMP := $(VENV)/.tilewright$(subst /,-,$(CURDIR))
setup: $(STAMP)
endif

demo: setup
	$(PY) -m tilewright tune examples/matmul.py --workload 4096

lint: setup
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m mypy

check: lint
	$(PY) -m pytest -q tests/test_house.py tests/test_docs.py

# What the first limit does not end, the second one does: it ends the process, and the other tests go on.
LIMITS := --timeout 400 -o faulthandler_timeout=500 -o faulthandler_exit_on_timeout=true
test: setup
	$(PY) -m pytest -n 2 --dist worksteal $(LIMITS)

test-long: setup
	$(PY) -m pytest -n 2 $(LIMITS) -m long

test-gpu: setup
	$(PY) -m pytest -m gpu

# None of the tools needs a key. Node comes from npm, because MCP Inspector needs 22.19 or newer.
HOSTS := $(CURDIR)/.venv/hosts
HOST_PACKAGES := node@22 @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/conformance@0.1.16 \
	@anthropic-ai/claude-code@2.1.331 @openai/codex@0.169.0 @google/gemini-cli@0.61.0
test-hosts: setup
	@npm --version >/dev/null || { echo 'no npm on PATH: install Node.js' >&2; exit 1; }
	npm install --prefix $(HOSTS) --no-fund --no-audit --silent $(HOST_PACKAGES)
	PATH=$(HOSTS)/node_modules/.bin:$$PATH $(PY) bench/agent_hosts.py $(if $(OUT),--out $(OUT))

# A second environment: its own packages come first, all others are those of the first environment.
VERSIONS := $(CURDIR)/.venv/versions
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
test-versions: setup
	$(PY) -m venv $(VERSIONS)
	$(VERSIONS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $(OTHERS)
	$(PY) $(PACKAGES) > "$$($(VERSIONS)/bin/python $(PACKAGES))/first.pth"
	PYTHONPATH=$(CURDIR)/src $(VERSIONS)/bin/python -m pytest -n 2 --timeout 600 $(VERSIONS_TESTS)

# The same for CuTe DSL, whose licence is NVIDIA's own: only for systems with NVIDIA GPUs.
CUTEDSL := $(CURDIR)/.venv/cutedsl
CUTEDSL_TESTS := tests/languages/cutedsl tests/specialists/test_compiled_for.py tests/specialists/writing/test_cutedsl_written.py
test-cutedsl: setup
	$(PY) -m venv $(CUTEDSL)
	$(CUTEDSL)/bin/python -m pip --disable-pip-version-check install --quiet 'nvidia-cutlass-dsl>=4.8.1,<4.9'
	$(PY) $(PACKAGES) > "$$($(CUTEDSL)/bin/python $(PACKAGES))/zz_first.pth"
	PYTHONPATH=$(CURDIR)/src $(CUTEDSL)/bin/python -m pytest -n 2 --timeout 600 $(CUTEDSL_TESTS)

# The same for Ray. Its processes end with the tests.
RAY := $(CURDIR)/.venv/ray
RAY_TESTS := tests/ray_cluster
test-ray: setup
	$(PY) -m venv $(RAY)
	$(RAY)/bin/python -m pip --disable-pip-version-check install --quiet 'ray[client]>=2.50,<3'
	$(PY) $(PACKAGES) > "$$($(RAY)/bin/python $(PACKAGES))/zz_first.pth"
	PYTHONPATH=$(CURDIR)/src $(RAY)/bin/python -m pytest --timeout 600 $(RAY_TESTS)

ifndef TILEWRIGHT_PYTHON
PIP := $(PY) -m pip --disable-pip-version-check install --quiet

$(STAMP): pyproject.toml | $(PY)
	@if $(PY) -c 'import torch' 2>/dev/null; then exit; \
	elif nvidia-smi -L >/dev/null 2>&1; then $(PIP) torch==$(TORCH); \
	else $(PIP) torch==$(TORCH)+cpu 2>/dev/null || \
		$(PIP) --retries 1 --timeout 15 --index-url https://download.pytorch.org/whl/cpu torch==$(TORCH)+cpu 2>/dev/null; \
	fi || echo "note: found no torch $(TORCH) to install; going on without, the tests that need it are skipped"
	$(PIP) --editable '.[dev,heuristics,gpu,mcp,search,agents]'
	@$(PIP) --no-deps tilegym==$(TILEGYM) 2>/dev/null || echo "note: found no tilegym $(TILEGYM); its tests are skipped"
	@$(PIP) '$(TRITON)' 2>/dev/null || echo "note: found no $(TRITON); the tests of kernels in Triton are skipped"
	@touch $@

# Some systems ship Python without ensurepip; their pip can still fill an environment.
$(CURDIR)/.venv/bin/python:
	@for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 none; do \
		$$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null && break; \
	done; \
	if [ $$python = none ]; then echo 'no Python from 3.10 to 3.14 on PATH: install one' >&2; exit 1; fi; \
	$$python -m venv $(VENV) >/dev/null || \
		{ $$python -m venv --clear --without-pip $(VENV) && $$python -m pip --python $@ install --quiet pip; }
endif
