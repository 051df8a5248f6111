# One virtual environment in .venv serves every target; it is made on first use and again when pyproject.toml or C code changes.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := pystachio tests benchmarks
NATIVE := pystachio/operators/kernels/native pystachio/io_scheduler/devices/native

.PHONY: demo test test-all test-gpu check format bench bench-gpu gpu-wheels wheel clean

demo: $(STAMP)
	$(BIN)/pystachio-node demo $(ARGS)

# A part that ARGS names may lie in one of the two runs only: the other ends with 5, no tests. Both must not.
test: $(STAMP)
	@$(BIN)/python -m pytest -m "not slow and not alone" -n auto --maxprocesses 4 --dist loadfile $(ARGS); first=$$?; \
	test $$first -eq 0 -o $$first -eq 5 || exit $$first; \
	$(BIN)/python -m pytest -m "not slow and alone" $(ARGS); second=$$?; \
	test $$second -eq 5 && exit $$first; exit $$second

test-all: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

# On a machine with a CUDA device. Everywhere else `make test` runs the same tests on a stand-in for one.
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: $(STAMP)
	$(BIN)/python -m benchmarks all $(ARGS)

# Without .venv it takes the Python at hand, which needs torch; what else is missing comes from the wheels of `make gpu-wheels`.
bench-gpu:
	$(if $(wildcard $(STAMP)),$(BIN)/python,$(PYTHON)) -m benchmarks gpu --record $(ARGS)

gpu-wheels: $(STAMP)
	$(BIN)/python -m benchmarks.travelling $(ARGS)

wheel: $(STAMP)
	$(BIN)/python -m build --wheel --outdir dist

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache $(addsuffix /*.so,$(NATIVE))

$(STAMP): pyproject.toml setup.py $(wildcard $(addsuffix /*.[ch],$(NATIVE)))
	@command -v $(PYTHON) >/dev/null 2>&1 || \
	    { echo "Python is missing. On Debian: sudo apt install python3 python3-venv. Or name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is too old: Python 3.11 or newer is needed. Name another: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "The venv module is missing from $(PYTHON). On Debian: sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,ray]'
	@touch $@
