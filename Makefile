# Needs nothing but make and Python 3.11 or newer; where there is no C compiler, a package brings one.
# `make PYTHON=python3.12 setup` picks another Python.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BUILT  := kvstore/core/.built
ZIG    := $(VENV)/.zig
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet

# One more than there are processors: tests wait for processes, disks and Java a third of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Those of the source folders that are there; mypy refuses a folder that is missing.
SOURCES = $(wildcard kvstore tiering pyspark_kvmq kombu_kvmq examples tests bench build_backend setup.py)

COMPILED = setup.py $(wildcard kvstore/core/*.p[yx][xd] kvstore/core/*/*.p[yx][xd] build_backend/*.py)

.PHONY: setup test test-all check demo bench bench-peers bench-serve pictures profiles mutants fuzz sanitize wheel clean
.DELETE_ON_ERROR:

setup: $(BUILT)

$(STAMP): pyproject.toml $(wildcard requirements/*.txt)
	@command -v "$(PYTHON)" >/dev/null || \
	    { echo "make: no '$(PYTHON)' on the PATH; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python setup" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "make: kvmq needs Python 3.11 or newer, but $(PYTHON) is %d.%d; name another: make PYTHON=python3.11 setup" % v[:2])'
	"$(PYTHON)" -m venv $(VENV)
	$(PIP) --require-hashes -r requirements/runtime.txt -r requirements/dev.txt
	@touch $@

# Compiles the core, where it changed, and installs the project in place.
$(BUILT): $(STAMP) $(COMPILED)
	@$(BIN)/python build_backend/backend.py || $(PIP) --require-hashes -r requirements/compiler.txt || \
	    { echo "make: there is no C compiler, and the package with one can't be had; install gcc or clang" >&2; exit 1; }
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

test: setup
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not long"

# Those, then the long models, the crash campaigns and Spark.
test-all: test $(ZIG)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m long

check: setup
	@for tool in ruff mypy vulture; do test -x $(BIN)/$$tool || \
	    { echo "make: $(VENV) has no $$tool, which requirements/dev.txt names; make it anew: rm -rf $(VENV) && make setup" >&2; exit 1; }; done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/vulture

demo: setup
	$(BIN)/kvmq demo

# For instance: make bench ARGS="--help"
bench: setup
	$(BIN)/python -m bench $(ARGS)

# Beside RocketMQ, NATS, Redis and others, which it brings where it can; writes docs/benchmarks.md.
# Takes an hour; for a quick try: make bench-peers ARGS="--messages 5000 --rounds 1 --no-page"
bench-peers: setup
	$(BIN)/python -m bench.peers $(ARGS)

# A served store beside RocketMQ's proxy, which Maven brings, by RocketMQ's protocol. Takes ten minutes; for a quick try:
# make bench-serve ARGS="--messages 5000 --rounds 1". With ARGS="--page" it writes its part of docs/benchmarks.md.
bench-serve: setup
	$(BIN)/python -m bench.beside_rocketmq $(ARGS)

# Where the time goes, native frames included; writes docs/profiles.md.
profiles: setup
	$(BIN)/python -m bench.profiles $(ARGS)

# Of the admin page, by a browser that the machine has; writes docs/admin-*.png.
pictures: setup
	$(BIN)/python -m tests.serve.http.pictures

# Small faults, one at a time, that tests must notice; by hand, since it takes long. For instance:
# make mutants ARGS=log
mutants: setup
	$(BIN)/python -m tests.mutants $(ARGS)

# A million inputs for each function of the core, and for connections, others each time. For instance, to see one again:
# make fuzz SEED=7 ARGS="-k unpack_runs"
INPUTS ?= 1000000
SEED   ?= $(shell date +%s)
fuzz: setup
	FUZZ_INPUTS=$(INPUTS) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -q -n $(WORKERS) --timeout=0 \
	    -o faulthandler_timeout=0 tests/core/test_fuzz.py tests/serve/http2/test_h2_fuzz.py $(ARGS)

# Tests over a core that notices each byte read outside a buffer. For instance:
# make sanitize ARGS="tests/log -n 2"
sanitize: setup
	$(BIN)/python build_backend/sanitize.py $(ARGS)

# A compiler for every processor.
$(ZIG): $(STAMP) requirements/compiler.txt
	$(PIP) --require-hashes -r requirements/compiler.txt
	@touch $@

# For x86-64 and arm64, into dist.
wheel: setup $(ZIG)
	$(BIN)/python build_backend/wheels.py

# Leaves the virtual environment: remove .venv by hand to have it made anew.
clean:
	rm -rf build dist *.egg-info kvmq-demo bench/out .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f $(BUILT) kvstore/core/*.c kvstore/core/*.so kvstore/core/*/*.c kvstore/core/*/*.so
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
