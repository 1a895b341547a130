# The commands of this project. Each sets up what it needs; a second run only looks.

PYTHON3 ?= python3
RUN := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup dist serve demo bench test test-torch soak lint lock release clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

setup: ## .venv, node_modules, Pyodide's wheels, a Chromium
	@$(PYTHON3) -m tools.setup

dist: setup ## the static page in dist/ (RUNTIME=cdn: Pyodide from its CDN)
	@$(RUN) -m tools.build_dist

serve: dist ## serve dist/ on loopback (PORT=8000)
	@$(RUN) -m tools.serve

demo: dist ## serve the page; HEADLESS=1, or no display: also drive it through the whole story
	@$(RUN) -m tools.demo

bench: setup ## the benchmark page, in small, with its peers (installed in bench/peers/ at the first run)
	@$(RUN) -m bench.run

test: setup ## all tests: CPython, and beside it headless Chromium with WebGPU (ARGS=… for pytest)
	@$(RUN) -m tools.build_dist
	@$(RUN) -m tools.run_tests $(ARGS)

TORCH_ENV := .cache/torch-venv
TORCH ?= torch==2.13.0

test-torch: $(TORCH_ENV)/ready ## the PyTorch twin and pretraining, in an environment of their own (TORCH=… for pip)
	@OMP_NUM_THREADS=1 $(TORCH_ENV)/bin/python -m pytest tests/torch $(ARGS)

$(TORCH_ENV)/ready:
	@$(PYTHON3) -m venv $(TORCH_ENV)
	@$(TORCH_ENV)/bin/pip install -q --disable-pip-version-check $(TORCH) numpy regex pytest pytest-asyncio
	@touch $@

soak: setup ## the fault tests at full volume, for hours (SOAK_SCALE=0.01 shrinks it; it goes on where it was; JOBS=… picks)
	@$(RUN) -m tools.soak $(JOBS)

lint: setup ## ruff, mypy --strict, tsc
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@node_modules/.bin/tsc --project tsconfig.json

lock: ## pin tools/requirements-dev.in anew, with hashes (needs uv on the path)
	@uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --upgrade -q tools/requirements-dev.in -o tools/requirements-dev.txt

release: setup ## wheels, sources and npm tarball in release/, the same bytes each time
	@$(RUN) -m tools.release

clean: ## remove what was built; .venv, node_modules and .cache stay (ALL=1: these too)
	@rm -rf dist build release demo.png test-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -not -path './node_modules/*' -prune -exec rm -rf {} +
	@if [ "$(ALL)" = 1 ]; then rm -rf .venv node_modules .cache; fi
