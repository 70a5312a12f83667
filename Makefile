PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

.PHONY: demo test check format bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## train a pronunciation model on CMUdict for three minutes and show what it learnt
	$(RUN)/unrolled demo

test: $(VENV)/.installed  ## the test suite
	$(RUN)/python -m pytest --numprocesses 2

check: $(VENV)/.installed  ## format, lint, types, import floors
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-cache

format: $(VENV)/.installed
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

bench: $(VENV)/.installed  ## this project beside others, in environments of their own (several gigabytes)
	benchmarks/peers.sh
	$(RUN)/python benchmarks/bench.py

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
