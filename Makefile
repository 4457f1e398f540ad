# Two commands do everything: `make train` and `make test`. Both need python3 (3.11 or newer), git and make.
PYTHON ?= python3
VENV   ?= .venv
RUN    ?= runs/first
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: train test lint format lock clean

train: $(STAMP)
	@$(BIN)/python -m maxtrain.corpus build data/recipes/sample.yaml --output datasets/sample
	@$(BIN)/python -m maxtrain.train configs/learning/first.yaml run.directory=$(RUN)
	@test -f $(RUN)/samples.jsonl || $(BIN)/python -m maxtrain.generate $(RUN) --record \
	  --prompt "It was a dark and" --prompt "却说" --prompt "def main(" --prompt "There are 12 apples."
	@$(BIN)/python -m maxtrain.report $(RUN)

test: $(STAMP)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -q

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The environment follows the lock file: hashes are checked, and nothing is installed twice.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maxtrain needs Python 3.11 or newer, not " + sys.version.split()[0] + "; choose one: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header -q -o requirements.lock

clean:
	rm -rf $(VENV) datasets runs .mypy_cache .ruff_cache .pytest_cache
