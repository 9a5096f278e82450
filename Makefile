# make demo, make test: on a fresh machine these set up everything, then do their job.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test trust check format bench docs dist clean

demo: $(READY)  ## an episode written into memory, pictures generated and recalled from it: demo/index.html
	$(BIN)/vbmem demo --out demo

test: $(READY)  ## the test suite
	$(BIN)/pytest -n auto --dist worksteal

trust: $(READY)  ## the long part of it: kills, flips, fuzzed files, hard problems, load (results/reliability.md)
	$(BIN)/pytest -n auto --dist worksteal -m long
	$(BIN)/python benchmarks/soak.py

check: $(READY)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## benchmarks, each a table and JSON on the same run
	$(BIN)/python benchmarks/write.py

docs: $(READY)  ## the documentation, in site/; fails on any warning
	$(BIN)/python docs/build.py

dist: $(READY)  ## sdist and wheel in dist/, and the wheel tried in a fresh environment
	.ci/dist $(BIN)/python

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt --upgrade pip  # the one that comes with Python knows no groups
	$(BIN)/pip install -q -c constraints.txt -e ".[app,hub,docs,arrow]" --group dev
	touch $@

clean:
	rm -rf $(VENV) demo dist site docs/results .pytest_cache .mypy_cache .ruff_cache
