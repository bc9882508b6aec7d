# Two commands set everything up and run: `make demo` and `make test`. Both need Python 3.11 and nothing else.
PYTHON ?= python3
BIN := .venv/bin
# PIP_CONSTRAINT also pins what pip puts into the isolated build environment.
PIP := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --progress-bar off
# The networks measured here are small: more threads than one cost more than they bring, and a busy machine shows it.
export OMP_NUM_THREADS ?= 1
# Tests start many processes; without bytecode each would compile the library anew.
export PYTHONDONTWRITEBYTECODE :=
PEER_BENCHMARKS := benchmarks/empirical_ntk.py benchmarks/kernels.py benchmarks/large_kernel.py benchmarks/meanfield.py benchmarks/transformer.py

.PHONY: demo data reproduce-small test test-all test-oldest test-newest test-trainers lint audit lock format bench bench-peers docs dist clean constraints

demo: .venv/.run
	@$(BIN)/orderone demo

# Real data sets into ./data (MNIST, CIFAR-10, books, ...): no test and no demo needs them.
data: .venv/.dev
	$(BIN)/python -m orderone.data.fetch

# Every table and figure of the papers at small scale: about five minutes on two cores. Interrupted, it goes on.
reproduce-small: .venv/.run
	$(BIN)/orderone reproduce --all --scale small --html gallery.html

test: .venv/.dev
	$(BIN)/pytest -m "not slow" --numprocesses 2 --dist worksteal

test-all: .venv/.dev
	$(BIN)/pytest

# The suite with the lower bounds of pyproject.toml, and with the newest versions on the registry (several GB each).
# Another Python: make test-newest PYTHON=python3.12
test-oldest: .venv-oldest/.ready
	.venv-oldest/bin/pytest -m "not slow" --numprocesses 2 --dist worksteal

test-newest: .venv-newest/.ready
	.venv-newest/bin/pytest -m "not slow" --numprocesses 2 --dist worksteal

# Plans in other trainers, and exports applied by their code. They are installed without their dependencies, which conflict.
test-trainers: .venv-trainers/.ready
	.venv-trainers/bin/pytest tests/trainers tests/planning/test_exports.py tests/planning/test_export_names.py \
	  tests/planning/test_adapters.py tests/planning/test_measured_adapters.py tests/integrations/test_trainer_pages.py

.venv-trainers/.ready: pyproject.toml constraints.txt
	@echo "installing other trainers into .venv-trainers (some minutes)"
	@$(PYTHON) -m venv --clear .venv-trainers
	@PIP_CONSTRAINT=constraints.txt .venv-trainers/bin/pip install --quiet --progress-bar off -e '.[test]'
	@.venv-trainers/bin/pip install --quiet --progress-bar off --no-deps torchtitan==0.3.0 megatron-core==0.16.1 \
	  nemo-automodel==0.7.0 ai2-olmo-core==3.0.0 trl==1.16.0 peft==0.21.2 spmd_types omegaconf \
	  antlr4-python3-runtime==4.9.3 bettermap torchdata dataclass-extensions dill deepspeed==0.19.8 hjson py-cpuinfo \
	  unit-scaling==0.3.5 triton==3.7.1 torchao==0.18.0
	@.venv-trainers/bin/pip install --quiet --progress-bar off cached_path beaker-py datasets mlflow-skinny einops \
	  tabulate docstring-parser msgpack ninja
	@touch $@

.venv-oldest/.ready: pyproject.toml .ci/oldest.py
	@echo "installing the oldest supported versions into .venv-oldest (some minutes)"
	@$(PYTHON) -m venv --clear .venv-oldest
	@$(PYTHON) .ci/oldest.py > .venv-oldest/constraints.txt
	@PIP_CONSTRAINT=.venv-oldest/constraints.txt .venv-oldest/bin/pip install --quiet --progress-bar off -e '.[test,docs]'
	@.venv-oldest/bin/pip install --quiet --progress-bar off --no-deps mup==1.0.0
	@touch $@

.venv-newest/.ready: pyproject.toml
	@echo "installing the newest versions into .venv-newest (some minutes)"
	@$(PYTHON) -m venv --clear .venv-newest
	@.venv-newest/bin/pip install --quiet --progress-bar off --upgrade -e '.[test,docs]'
	@.venv-newest/bin/pip install --quiet --progress-bar off --no-deps mup==1.0.0
	@touch $@

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv" PYTHONPATH=src \
		$(BIN)/pyright --verifytypes orderone --ignoreexternal # every public type is known
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory audit

# Known vulnerabilities of requirements.lock; skipped where the registry does not answer.
audit:
	@test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit \
		&& .venv-audit/bin/pip install --quiet --progress-bar off 'pip-audit>=2.7' 2> /dev/null; } || true
	@$(PYTHON) .ci/audit.py .venv-audit/bin/pip-audit

# Rewrites the hashes from the versions in constraints.txt; read the difference before committing it.
lock: .venv/.run
	$(BIN)/pip install --quiet --dry-run --ignore-installed --only-binary :all: --constraint constraints.txt --report .venv/report.json \
		$$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"])')
	$(PYTHON) .ci/lock.py .venv/report.json > requirements.lock

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Writes bench.json; python benchmarks/compare.py OLD.json bench.json says what became slower.
bench: .venv/.dev
	$(BIN)/python benchmarks/bench.py bench.json
	$(BIN)/pytest benchmarks --benchmark-enable --benchmark-columns=median,iqr,rounds --benchmark-json=bench-pytest.json

# Peers that cannot live beside our dependencies get an environment of their own; without it there is nothing to compare.
bench-peers: .venv/.dev
	@test -e .venv-peers/.ready || { echo "installing the peers into .venv-peers (once; some minutes)"; \
		$(PYTHON) -m venv .venv-peers && .venv-peers/bin/pip install --quiet --progress-bar off \
		-r benchmarks/peers/requirements.txt && touch .venv-peers/.ready; } || true
	@if test -e .venv-peers/.ready; then for script in $(PEER_BENCHMARKS); do $(BIN)/python $$script .venv-peers/bin/python; done; \
		else $(BIN)/python benchmarks/empirical_ntk.py; \
		echo "bench-peers: only torch.func, since the peers could not be installed here (see above)"; fi

docs: .venv/.dev
	PYTHONPATH=docs $(BIN)/zensical build --strict --clean
	@echo "open site/index.html"

# sdist and wheel, checked: metadata, files, and the demo from the wheel in an empty environment (some minutes).
dist:
	@test -x .venv-dist/bin/twine || { echo "installing build and twine into .venv-dist (once)"; $(PYTHON) -m venv .venv-dist \
		&& .venv-dist/bin/pip install --quiet --progress-bar off 'build>=1.2' 'twine>=6'; }
	rm -rf dist .venv-dist/empty .venv-dist/demo
	PIP_CONSTRAINT="$(CURDIR)/constraints.txt" .venv-dist/bin/python -m build --outdir dist .
	.venv-dist/bin/twine check --strict dist/*
	@echo "installing the wheel into an empty environment"
	$(PYTHON) -m venv .venv-dist/empty
	PIP_CONSTRAINT=constraints.txt .venv-dist/empty/bin/pip install --quiet --progress-bar off "$$(echo dist/*.whl)[transformers,report,data]"
	.venv-dist/empty/bin/pip check
	mkdir .venv-dist/demo && cd .venv-dist/demo && env -u PYTHONPATH ../empty/bin/orderone demo
	@$(PYTHON) .ci/check_dist.py

clean:
	rm -rf .venv .venv-audit .venv-peers .venv-dist .venv-oldest .venv-newest .venv-trainers dist site .cache .pytest_cache .ruff_cache .hypothesis

# Rewrites the pins from what is installed now; read the difference before committing it.
constraints: .venv/.dev
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "orderone needs Python 3.11 or newer; try: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "python venv is missing; on Debian: apt-get install python3-venv"; exit 1; }

.venv/.run: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing into .venv (once; about a minute)"
	@$(PIP) -e '.[transformers,report,data]'
	@touch $@

.venv/.dev: .venv/.run
	@echo "installing the development tools into .venv (once)"
	@$(PIP) -e '.[dev]'
	@$(PIP) --no-deps mup==1.0.0 # an oracle for tests; its torchvision is not needed
	@touch $@
