# Braze: everything from a clean checkout. Needs python3 (3.11 to 3.15), pip and g++.
#
#   make demo    three real models, side by side with eager and torch.compile: minutes
#   make test    the whole test suite
#   make check   minutes, for every commit: format, lint, types, architecture, unit, golden
#   make help    the rest
#
# PYTHON=python3.12   the interpreter for the virtual environment
# VENV=.venv          where it is made; it is kept, and the second run is quick
# TORCH=torch==2.13.0 what pip installs where the environment has no torch (2.15.0 for Python 3.15);
#                     further arguments of pip may follow, such as the index of builds for CPUs
# ARGS=...            further arguments for pytest or the benchmarks

VENV ?= .venv
# The first release with a wheel for Python 3.15 is 2.15.
TORCH ?= torch==$(if $(findstring Python 3.15,$(shell "$(PYTHON)" --version 2>&1)),2.15.0,2.13.0)
JOBS ?= auto
ARGS ?=

SUPPORTED = (3, 11) <= sys.version_info[:2] <= (3, 15)
FIND_PYTHON = for name in python3 python3.13 python3.12 python3.11 python3.14 python3.15; do \
	"$$name" -c 'import sys; sys.exit(not $(SUPPORTED))' 2>/dev/null && echo "$$name" && break; \
	done
PYTHON ?= $(shell $(FIND_PYTHON))

BIN := $(VENV)/bin
READY := $(VENV)/.braze
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet
# One thread in each test process: the processes share the processors.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup
QUICK_TESTS = tests/architecture tests/unit $(wildcard tests/golden)

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test nightly check format docs bless wheel coverage bench fuzz surface gradients zoo flows test-gpu bench-gpu bench-gpu-changes clean distclean test-versions

help:
	@echo "make demo       three models under eager, torch.compile and Braze, minutes: table, JSON, PNG"
	@echo "make test       the whole test suite"
	@echo "make nightly    the same with all of its long sweeps, of which it takes a share each day"
	@echo "make check      minutes: format, lint, types, architecture, unit and golden tests"
	@echo "make format     rewrite the source in the project's format"
	@echo "make docs       build the documentation's site in site/, and fail at a warning"
	@echo "make bless      rewrite the generated pages and golden files; then look at the diff"
	@echo "make wheel      build a wheel, install it in an empty environment and run it"
	@echo "make coverage   which lines of the source the quick tests run: coverage/index.html"
	@echo "make bench      the full comparison: both dtypes, warm starts, memory, intervals"
	@echo "make cpython    all of CPython's own tests of the language, each compiled: the table"
	@echo "make surface    questions of dir(), asked again after changes, an hour or two"
	@echo "make fuzz       random programs and planted bugs, hours; more samples of operators"
	@echo "make gradients  the gradients of 20 steps of eight models, three ways each, against float64"
	@echo "make zoo        150 architectures of transformers and torchvision, made small"
	@echo "make flows      generation, trainers and adapters of libraries, which it installs"
	@echo "make test-versions  the suite on other versions of PyTorch and Python: the table"
	@echo "make test-gpu   the tests that need a GPU"
	@echo "make bench-gpu  models and single kernels on a GPU: tables and JSON in benchmarks/results"
	@echo "make bench-gpu-changes  each change for GPUs, with it and without: one table"
	@echo "make clean      remove what builds and tests leave; distclean: the environment too"

demo: $(READY)/packages
	$(BIN)/python -m benchmarks.demo $(ARGS)

test: $(READY)/packages
	$(PYTEST) -m "not gpu and not zoo and not nightly" $(ARGS)

# All of each sweep of which `make test` takes another share each day (tests/shares.py).
nightly: $(READY)/packages
	$(PYTEST) -m "not gpu and not zoo" $(ARGS)

fuzz surface gradients zoo cpython nightly: export BRAZE_DAY = all

check: $(READY)/packages
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(PYTEST) -m "not gpu and not slow" $(QUICK_TESTS) $(ARGS)

format: $(READY)/packages
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(READY)/docs
	$(PYTEST) --bless tests/docs tests/architecture/test_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo "The site is in site/: open site/index.html, or serve it by $(BIN)/mkdocs serve"

bless: $(READY)/packages
	$(PYTEST) --bless tests/docs tests/architecture/test_docs.py $(wildcard tests/golden) $(ARGS)

wheel: $(READY)/packages
	$(BIN)/python -m pytest tests/packaging $(ARGS)

coverage: $(READY)/packages
	$(PIP) coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -m "not gpu and not slow" $(QUICK_TESTS) $(ARGS)
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

bench: $(READY)/packages
	$(BIN)/python -m benchmarks.compare $(ARGS)

surface: $(READY)/packages
	for sweep in tensors objects modules numpy_functions tensor_changes module_changes patches; do \
		$(BIN)/python -W ignore -m tests.surface.$$sweep || exit 1; done
	$(BIN)/python -m tests.surface.cached_functions --count 2000
	BRAZE_SURFACE=all $(PYTEST) tests/surface/test_changes.py tests/surface/test_torch_modules.py \
		tests/surface/test_decorators.py

fuzz: $(READY)/packages
	$(BIN)/python -m tests.fuzz --programs 20000 --jobs $$(nproc) --shrink 60 $(ARGS)
	$(BIN)/python -m tests.fuzz.reference --programs 20000 --jobs $$(nproc) --shrink 20
	$(BIN)/python -m tests.fuzz --loops --programs 5000 --jobs $$(nproc) --shrink 60
	$(BIN)/python -m tests.fuzz --training --programs 5000 --jobs $$(nproc)
	$(BIN)/python -m tests.fuzz --interpreted --programs 2000 --jobs $$(nproc)
	$(MAKE) surface
	$(BIN)/python -m tests.fuzz --planted --programs 2000 --jobs $$(nproc)
	BRAZE_SWEEP_SAMPLES=20 BRAZE_SHAPE_PROGRAMS=10000 \
		$(PYTEST) -m "not gpu" tests/differential $(ARGS)
	$(BIN)/python -m tests.differential.forced_fusions --programs 300
	$(BIN)/python -m tests.differential.equivalent_programs --programs 300
	$(BIN)/python -m tests.differential.sanitized --programs 100 --bounds
	$(BIN)/python -W ignore -m tests.differential.changed_sizes --all
	$(BIN)/python -m tests.differential.wrong_arguments --samples 2 --every 7
	$(BIN)/python -W ignore -m tests.differential.failure_sweep
	$(BIN)/python -W ignore -m tests.differential.memory_sweep
	$(BIN)/python -W ignore -m tests.differential.bytes_sweep
	BRAZE_ALL_SIZES=1 $(PYTEST) tests/models/test_sizes.py $(ARGS)

gradients: $(READY)/packages
	BRAZE_ALL_GRADIENTS=1 $(PYTEST) tests/models/test_whole_step.py $(ARGS)

flows: $(READY)/packages
	$(PIP) --editable ".[flows]"
	$(PYTEST) -m "not gpu" tests/models/test_flows.py $(ARGS)

zoo: $(READY)/packages
	$(PYTEST) -m "not gpu" tests/models/test_zoo.py $(ARGS)

cpython: $(READY)/packages
	BRAZE_CPYTHON_SHARE=1 $(PYTEST) tests/cpython $(ARGS)

# The driver needs nothing but Python 3.11; it makes an environment for each row in .versions/.
test-versions:
	$(PYTHON) -m tests.versions $(ARGS)

# The sweeps at the end are long and few: a worker without work takes some of another's.
test-gpu: $(READY)/packages
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m gpu tests/gpu tests/unit/codegen/test_triton.py \
		tests/unit/codegen/test_triton_indices.py tests/unit/codegen/test_triton_products.py \
		tests/unit/codegen/test_triton_columns.py $(ARGS)

bench-gpu: $(READY)/packages
	$(BIN)/python -m benchmarks.models_gpu $(ARGS)
	$(BIN)/python -m benchmarks.kernels_gpu --json benchmarks/results/kernels_gpu.json
	$(BIN)/python -m benchmarks.launching_gpu
	$(BIN)/python -m benchmarks.products_gpu
	$(BIN)/python -m benchmarks.attention_gpu
	$(BIN)/python -m benchmarks.memory_gpu

bench-gpu-changes: $(READY)/packages
	$(BIN)/python -m benchmarks.gpu_changes $(ARGS)

clean:
	rm -rf build dist site coverage .coverage .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf "$(VENV)" .versions

# --- the environment: three stamps, each made once --------------------------------------------

$(READY)/venv:
	@test -n "$(PYTHON)" || { \
	  echo "Braze needs Python 3.11 to 3.15, and none is on the PATH." >&2; \
	  echo "Install one (Debian, Ubuntu: apt install python3 python3-venv)," >&2; \
	  echo "or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not $(SUPPORTED))' || { \
	  echo "PYTHON=$(PYTHON) is not Python 3.11 to 3.15:" >&2; \
	  "$(PYTHON)" --version >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv "$(VENV)" || { \
	  echo "Python's venv module is missing (Debian, Ubuntu: apt install python3-venv)" >&2; \
	  exit 1; }
	@mkdir -p $(READY)
	@touch $@

$(READY)/torch: $(READY)/venv
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))'; \
	then echo "PyTorch is there already"; \
	else echo "Installing PyTorch ($(TORCH)): once, a few minutes"; $(PIP) $(TORCH); fi
	@touch $@

# torchvision without its dependencies: its wheel names a GPU build of torch that is not needed.
$(READY)/packages: $(READY)/torch pyproject.toml
	@echo "Installing Braze and the packages of its demo, tests and checks: once, a minute or two"
	@$(PIP) --editable ".[demo,test,check]"
	@$(PIP) pillow
	@$(PIP) --no-deps torchvision
	@command -v "$${BRAZE_CXX:-g++}" clang++ c++ >/dev/null || \
	  echo "No C++ compiler found: Braze will run ATen kernels only (apt install g++)" >&2
	@touch $@

$(READY)/docs: $(READY)/packages
	@echo "Installing the packages that build the documentation's site: once"
	@$(PIP) --editable ".[docs]"
	@touch $@
