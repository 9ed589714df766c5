# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: install demo test pages attacks faults compatibility mutants bench-peers lint docs pictures \
	release-check licences sbom lock clean

# Installed once; again only when pyproject.toml changed. The extra has what the README's commands need.
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e '.[network,serve]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e '.[dev]'
	touch $@ $(VENV)/.installed

demo: install
	$(BIN)/colonnade demo

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests experiments benchmarks examples release docs/conf.py docs/generate
	$(BIN)/ruff format --check src tests experiments benchmarks examples release docs/conf.py docs/generate
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# Pages in a system Chromium; part of `make test` too, with a page of each kind of the docs instead of
# all. Screenshots for the docs with: make pages FLAGS=docs/pictures/screens
pages: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 COLONNADE_EVERY_PAGE=1 COLONNADE_SCREENSHOTS=$(FLAGS) $(BIN)/python -m pytest -q tests/pages

# Every attack that is kept as a test; writes the table in docs/security.md.
attacks: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/attack/table.py $(FLAGS)

# Kills (in training, enrolment, alignment, prediction, renewal), cuts and noise in a row, seeded; writes
# what happened to docs/faults.json. One cut lasts ten minutes; leave it out with: make faults
# FLAGS=--no-long-cut. One part of the file: FLAGS="--only-kills --stride 40"
faults: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python tests/fault/campaign.py --out docs/faults.json $(FLAGS)

# Agents from wheels of other versions, each in an environment of its own, at today's hub: accepted or
# refused as docs/compatibility.md says. An earlier revision needs git history. A few minutes.
compatibility: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/fault/other_versions.py

# A seeded sample of all mutants; writes docs/mutants.json and the tables of docs/mutants.md. About an
# hour; smaller with: make mutants FLAGS="--size 25"
mutants: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/mutants/run.py $(FLAGS)

# Against Flower and NVFlare, each in an environment of its own, which `make clean` removes.
PEERS := build/peers
$(PEERS)/%/.installed: benchmarks/peers/requirements-%.txt
	test -x $(PEERS)/$*/bin/python || $(PYTHON) -m venv $(PEERS)/$*
	$(PEERS)/$*/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	touch $@

bench-peers: $(VENV)/.installed-dev $(PEERS)/flower/.installed $(PEERS)/nvflare/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peers/run.py --environments $(PEERS) \
		--json docs/results/bench/peers.json --page docs/network.md

$(VENV)/.installed-docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e '.[network,serve,docs]'
	touch $@ $(VENV)/.installed

# Into site/, offline; a warning (a broken link, a page that no list names) is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs site

# Every picture of the docs, from its source in docs/generate.
pictures: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python docs/generate/draw.py

# A release as somebody else would install it; see docs/releases.md.
$(VENV)/.installed-release: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e '.[dev,docs,bench,release]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-docs

release-check: $(VENV)/.installed-release
	$(BIN)/python release/check.py $(FLAGS)

# The licence of every package in the environment; fails where one is unknown.
licences: $(VENV)/.installed-release
	$(BIN)/python release/licences.py

# A bill of materials in CycloneDX's format, of what an installation with every extra brings.
sbom: $(VENV)/.installed-release
	mkdir -p build
	$(BIN)/cyclonedx-py environment $(BIN)/python --output-format JSON --output-file build/sbom.json

# The versions of this environment, for others to install.
lock: $(VENV)/.installed-release
	$(BIN)/python release/lock.py

clean:
	rm -rf $(VENV) build site *.egg-info src/*.egg-info
