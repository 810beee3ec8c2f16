# Few words, each of which sets itself up on a fresh machine. ARGS passes more on: make run ARGS="--port 8080"
.PHONY: help setup run test lint bench soak clean
.DEFAULT_GOAL := help

help:  ## say what the words are
	@sed -n 's/^\([a-z]*\):.*## /make \1	/p' $(MAKEFILE_LIST)

setup:  ## install everything into .venv; instant when nothing changed
	@scripts/setup.sh

# the tenants of `keepwarm demo --traffic`, unless keys, other machines or other tenants are spoken of
DEMO = $(if $(KEEPWARM_HOST)$(KEEPWARM_CONFIG)$(KEEPWARM_OPEN_TENANTS)$(filter --host% --config% --open-tenants%,$(ARGS)),,--open-tenants support,coding,reports)

run: setup  ## start the server on the default model
	.venv/bin/keepwarm serve $(DEMO) $(ARGS)

# two at a time, a file's tests in one process; -n 0 is one at a time, which a debugger needs
test: setup  ## run every test
	.venv/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: setup  ## check style, types and the borders between packages
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: setup  ## measure; the last line is one JSON object
	.venv/bin/python -m benchmarks $(ARGS)

soak: setup  ## mixed traffic for half an hour: does memory stay flat? ARGS="--minutes 5" for less
	.venv/bin/python -m benchmarks.soak $(ARGS)

clean:  ## remove what is built here, .venv too; caches of models stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
