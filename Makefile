# Two commands matter: `make demo` and `make test`. Both set up everything they need in .venv,
# starting from nothing but python3, pip and make.

PYTHON ?= python3
VENV   := .venv
# Of tests: those that run processes wait for half of their time, so that four of them keep two cores busy.
WORKERS ?= 4
BIN    := $(VENV)/bin

# pip compiles what it installs; this keeps our own modules compiled too, so that `koguma` starts fast.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test check soak bench docs golden lock release audit clean

install: $(VENV)/.installed

# A Debian without python3-venv has no ensurepip: then the machine's own pip fills the environment.
$(VENV)/.installed: requirements/dev.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null || $(PYTHON) -m venv --clear --without-pip $(VENV)
	@if $(BIN)/python -c 'import pip' 2>/dev/null; then pip="$(BIN)/python -m pip"; else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	 echo "Installing into $(VENV) (once, about half a minute) ..."; \
	 $$pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.lock && \
	 $$pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: install
	@$(BIN)/python -m examples.$(if $(ZONES),demo_zones $(ZONES),demo)

# Everything that CI checks.
test: install
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports && $(BIN)/mypy
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The fast round while you work: format, lint, types, import contract, fast tests.
check: install
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/lint-imports && $(BIN)/mypy
	@$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile

# Long runs: a thousand kills, a longer fuzz of the API, deeper property tests.
soak: install
	@KOGUMA_SOAK=1 $(BIN)/python -m pytest -m "soak or property" --timeout=7200

bench: install
	@$(BIN)/python -m bench && $(BIN)/python -m bench.compile && $(BIN)/python -m bench.incremental && \
	 $(BIN)/python -m bench.encode && $(BIN)/python -m bench.snapshots && $(BIN)/python -m bench.live && \
	 $(BIN)/python -m bench.answers
	@mkdir -p build && for n in 500 1000 2000; do \
	   $(BIN)/python -m bench.scale --proxies $$n --services 200 --json > build/scale-$$n.json || exit 1; done
	@$(BIN)/python -m bench.plots docs/images build/scale-*.json

# Regenerate what docs/reference says from the code.
docs: install
	@$(BIN)/python -m docs.generate

# Rewrite the expected part of golden cases; read the diff before you commit it.
golden: install
	@KOGUMA_GOLDEN=rewrite $(BIN)/python -m pytest -q -m "not slow"

# Resolve the dependencies again. Needs uv; the locks hold hashes and no addresses.
lock:
	uv pip compile -q --generate-hashes --universal --python-version 3.11 --no-annotate --custom-compile-command "make lock" \
	  --extra postgres --extra fast --extra traces --group dev pyproject.toml -o requirements/dev.lock
	uv pip compile -q --generate-hashes --universal --python-version 3.11 --no-annotate --custom-compile-command "make lock" \
	  --extra postgres --extra fast --extra traces pyproject.toml -o requirements/runtime.lock

# The files of a release in dist/: wheel, sdist, SBOM (CycloneDX), provenance (in-toto, SLSA), checksums.
release: install
	@$(BIN)/python -m release

# Fails where a pinned package or Envoy has a known vulnerability; says so where nobody can be asked.
audit: install
	@$(BIN)/python -m release.audit

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
