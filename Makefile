# Everything that one needs to run, test and measure Pillion. Each target does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMPS := .stamps
GPU_TESTS := tests/kernels tests/actors/gpu_worker tests/ring/test_real_worker.py tests/engine/test_greedy_on_cuda.py
QUESTION := Why does the moon have phases? Answer in two sentences.

.PHONY: demo test test-clients test-gpu lint bench docs clean

$(STAMPS)/venv:
	@mkdir -p $(STAMPS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Pillion needs Python 3.11 or newer; set PYTHON=... to name one"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
		|| { echo "cannot make a virtual environment: on Debian, run apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@touch $@

$(STAMPS)/install: $(STAMPS)/venv pyproject.toml constraints.txt
	@echo "Installing Pillion into $(VENV) ..."
	@$(PIP) -e .
	@touch $@

$(STAMPS)/test: $(STAMPS)/install
	@$(PIP) -e '.[test]'
	@touch $@

# For the tests of the HTTP server's page. Where it cannot be had like this they are skipped, and say what is missing.
$(STAMPS)/browser:
	@mkdir -p $(STAMPS)
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then touch $@; \
	elif [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
		echo "Installing Chromium ..."; \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
			chromium chromium-driver; } >$@.log 2>&1 && touch $@ || tail -n 3 $@.log; \
	fi

$(STAMPS)/lint: $(STAMPS)/install
	@$(PIP) -e '.[test,lint]'
	@touch $@

demo: $(STAMPS)/install
	@$(BIN)/pillion pull smollm2
	@$(BIN)/pillion status >/dev/null 2>&1 || $(BIN)/pillion serve smollm2 --daemon
	@echo "> $(QUESTION)"
	@$(BIN)/pillion generate --chat --max-tokens 100 --temperature 0 "$(QUESTION)"
	@echo
	@echo "The daemon keeps running. Try next:"
	@echo "  $(BIN)/pillion chat               talk to it"
	@echo "  $(BIN)/pillion status             its actors and what they do"
	@echo "  $(BIN)/pillion generate \"Once upon a time\""
	@echo "  $(BIN)/pillion stop               end it; nothing is left behind"

test: $(STAMPS)/test $(STAMPS)/browser
	$(BIN)/python -m pytest -q -rs -m "not gpu" $(ARGS)

test-clients: $(STAMPS)/test
	$(BIN)/python -m pytest -q -m clients $(ARGS)

# A part alone: make test-gpu GPU_TESTS=tests/kernels, or ARGS="-k memcheck".
test-gpu:
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m pytest -q -rs --durations=10 -m gpu $(GPU_TESTS) $(ARGS)

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell .

bench: $(STAMPS)/install
	$(BIN)/pillion bench latency

docs: $(STAMPS)/test
	$(BIN)/python -P -m pillion.actors.gateway.reference > docs/http-reference.md

clean:
	rm -rf $(VENV) $(STAMPS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
