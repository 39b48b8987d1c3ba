PY := .venv/bin/python
.PHONY: setup setup-dev demo localnet check test sim bench contracts lock clean

setup:          ; ./setup.sh
setup-dev:      ; ./setup.sh --dev
demo: setup     ; $(PY) -m assay.cli.main localnet examples/quickstart.toml
localnet: setup ; $(PY) -m assay.cli.main localnet $(ARGS)
test: setup-dev ; $(PY) -m pytest -n 2 --dist loadfile
sim: setup      ; $(PY) -m tests.simulation.run --seeds 200
check: setup-dev lint test
.PHONY: lint
lint:           ; $(PY) -m ruff format --check . && $(PY) -m ruff check . && $(PY) -m mypy && .venv/bin/lint-imports --no-cache
bench: setup    ; for file in transport wire demo_step aggregation ledger; do $(PY) -m benchmarks.$$file; done
contracts: setup-dev ; cd contracts && node compile.mjs && cd .. && $(PY) -m pytest tests/contracts
.PHONY: slither halmos
slither: setup-dev build/slither/bin/slither ; $(PY) -m pytest tests/contracts/test_slither.py
halmos: setup-dev build/halmos/bin/halmos ; cd contracts && PATH="$$PWD/node_modules/.bin:$$PATH" && export PATH && forge clean && ../build/halmos/bin/halmos --match-contract '^Symbolic.+'
build/slither/bin/slither: ; $(PY) -m venv build/slither && build/slither/bin/pip install slither-analyzer==0.11.6
build/halmos/bin/halmos:   ; $(PY) -m venv build/halmos && build/halmos/bin/pip install halmos==0.3.3
lock:           ; uv pip compile --universal --python-version 3.10 --generate-hashes --no-header --no-annotate requirements.in -o requirements.lock
clean:          ; rm -rf .venv runs contracts/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
