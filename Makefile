# Each target works from a bare clone: python3 (3.11 or newer) and make are enough, the rest is installed into .venv.
# pip's own configuration (an index, a proxy, a folder of wheels) is honoured; constraints.txt fixes the versions.

PYTHON ?= python3
PYTEST_ARGS ?=
CLIENTS_ARGS ?=
ENGINES_ARGS ?=
SOAK_FAULTS ?= 200
SOAK_PROMPTS ?= 500
SOAK_REQUESTS ?= 2000

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# The demo and the tests read nothing but what the repository holds.
export HF_HUB_OFFLINE := 1

.PHONY: help demo serve clients engines docs test lean check bench soak campaign clean

help:
	@echo "make demo    profile, trace, plan, run and validate the bundled pair, in at most 8 minutes"
	@echo "make serve   serve the plan that make demo made: an OpenAI-compatible server on port 8000"
	@echo "make docs    the API reference, in build/api: open build/api/index.html"
	@echo "make test    run every test (PYTEST_ARGS='-k tree' to choose)"
	@echo "make lean    the planner's tests without extras, on the oldest versions that it allows: an environment of its own"
	@echo "make check   ruff and mypy"
	@echo "make bench   plan for this machine, then measure: tests/benchmarks (SWIFTSPEC_VLLM=PYTHON compares with vLLM, too)"
	@echo "make soak    SOAK_FAULTS=200 prompts with a fault in each, then SOAK_PROMPTS=500 of varied lengths, then SOAK_REQUESTS=2000 at once"
	@echo "make campaign    faults of every kind and process, then faults and 10,000 odd requests at loaded servers"
	@echo "make clients    real clients (openai, GuideLLM, AIPerf, lm-eval; CLIENTS_ARGS="--vllm PYTHON" compares with vLLM) against the server, each in an environment of its own"
	@echo "make engines    the real vLLM on CPUs from profile to validation: ENGINES_ARGS='--vllm PYTHON', of an environment that has it"
	@echo "make clean   remove caches and build outputs; $(VENV) stays"

demo: $(INSTALLED)
	$(BIN)/swiftspec demo

serve: $(INSTALLED)
	@test -e swiftspec-demo/plan.json || $(MAKE) demo
	$(BIN)/swiftspec serve --plan swiftspec-demo/plan.json

clients: $(INSTALLED)
	$(BIN)/python -m tests.clients.run $(CLIENTS_ARGS)

engines: $(INSTALLED)
	$(BIN)/python -m tests.external.engines $(ENGINES_ARGS)

docs: $(INSTALLED)
	$(BIN)/python -m tests.api_reference build/api

test: $(INSTALLED)
	$(BIN)/python -m tests.run $(PYTEST_ARGS)

# Needs no other installation.
lean:
	$(PYTHON) -m tests.lean $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers auto

bench: $(INSTALLED)
	$(BIN)/python -m tests.benchmarks.make_plan build/bench
	$(BIN)/python -m pytest tests/benchmarks --benchmark-enable -m "bench or not bench" \
	    --swiftspec-plan build/bench/plan.json --swiftspec-prompts swiftspec/demo/prompts/validate.jsonl \
	    --swiftspec-limit 12 $(PYTEST_ARGS)

soak: $(INSTALLED)
	$(BIN)/python -m tests.engine.soak --prompts $(SOAK_FAULTS)
	$(BIN)/python -m tests.engine.growth --prompts $(SOAK_PROMPTS)
	$(BIN)/python -m tests.engine.load_soak --requests $(SOAK_REQUESTS)

campaign: $(INSTALLED)
	$(BIN)/python -m tests.engine.campaign --faults 300 --out campaign.json
	@test -e swiftspec-demo/plan.json || $(MAKE) demo
	$(BIN)/python -m tests.server.campaign --plan swiftspec-demo/plan.json --control slo \
	    --policies autoregressive,serial_chain,suffix_or_draft,swiftspec,ssd

clean:
	rm -rf build dist *.egg-info .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find swiftspec tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Written last, so that an interrupted installation is taken up again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "swiftspec needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) cannot create virtual environments: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) (torch and triton are large: one to several minutes, once)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	@touch $@
