# Everything installs into VENV; nothing else on the machine is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# make run MODEL=alias|file|dir DRAFT=alias|file|dir PROMPT="..." ARGS="further options"
PROMPT ?= Explain in three sentences why the sky is blue.
RUN_OPTIONS = $(if $(MODEL),--model "$(MODEL)") $(if $(DRAFT),--draft-model "$(DRAFT)") $(ARGS)

MODELS := smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma3-270m

NATIVE := pyproject.toml constraints.txt CMakeLists.txt $(shell find quant/native -type f)

.PHONY: run test test-real check bench clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: $(BIN)/python $(NATIVE)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.stamp: $(BIN)/python $(NATIVE)
	$(PIP) install --quiet --constraint constraints.txt --editable ".[torch,dev]"
	touch $@ $(VENV)/run.stamp

run: $(VENV)/run.stamp
	$(BIN)/specdec run $(RUN_OPTIONS) "$(PROMPT)"

test: $(VENV)/dev.stamp
	$(BIN)/pytest -m "not real"

# Tests on real model files; fetches what is missing (1.9 GB) into the model cache.
test-real: $(VENV)/dev.stamp
	$(BIN)/specdec models pull $(MODELS)
	SPECDEC_REQUIRE_MODELS=1 $(BIN)/pytest -m real

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# make bench MODEL=... DRAFT=... ARGS="..."
bench: $(VENV)/run.stamp
	$(BIN)/specdec bench $(RUN_OPTIONS)

clean:
	rm -rf $(VENV) build dist
