# Everything a newcomer needs: `make` says what there is, `make demo` shows it, `make test` proves it.
# Nothing outside this folder is changed: .venv holds the programs, .cache what was downloaded.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
PYTEST := -n 4 --dist worksteal

# Every process of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test full sixth landing gate servers tools lint unit golden stores compat chaos mutants bench soak deploy-test packages release docs clean distclean
.DEFAULT_GOAL := help

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with everything from pyproject.toml

$(STAMP): pyproject.toml lab/venv.py
	$(PYTHON) -m lab.venv $(VENV)
	@touch $@

demo: $(STAMP)  ## stream a throwaway MySQL into a throwaway S3 store, compare, undo a DELETE, drop a table, bring it back
	$(VENV)/bin/python -m lab.demo

test: $(STAMP)  ## the gate: lint, types, tests; minutes (CI=true: a server that cannot be had fails)
	@$(MAKE) --no-print-directory -j3 lint servers gate

full: lint tools  ## all tests, with every combination: before a release, after a change of a mechanism
	$(VENV)/bin/python -m pytest --tier full $(PYTEST)

sixth: $(STAMP) tools  ## one sixth of what `make full` has more than `make test`: SIXTH=n, or that of .ci/landing
	$(VENV)/bin/python -m pytest --tier full --sixth $(or $(SIXTH),$(shell cat .ci/landing)) $(PYTEST)

landing:  ## count a landing on main in .ci/landing: the next sixth is CI's
	@read -r n <.ci/landing && echo $$((n + 1)) >.ci/landing && cat .ci/landing

gate: $(STAMP)
	$(VENV)/bin/python -m pytest $(PYTEST)

servers: $(STAMP)  ## get MySQL, MariaDB and MinIO, as far as they are not here; what waits for them does
	-@$(VENV)/bin/python -m lab.get mysql mariadb minio >/dev/null

tools: servers
	-@$(VENV)/bin/python -m lab.get versitygw toxiproxy s3s-fs faketime promtool actionlint mandoc aws mariabackup \
	    mariadb-encryption mysql-5.7.22 mysql-8.0.15 mysql-8.0.31 mariadb-11.4 mariadb-11.8 >/dev/null

lint: $(STAMP)  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

unit: lint  ## lint, types, and tests/unit, tests/property and tests/golden
	$(VENV)/bin/python -m pytest $(PYTEST) tests/unit tests/property tests/golden

golden: $(STAMP)  ## write the golden files anew: what commands print of the buckets in tests/golden; then read the diff
	$(VENV)/bin/python -m tests.golden
	@git --no-pager diff --stat -- tests/golden

stores: $(STAMP)  ## the tests of streaming on MinIO, versitygw, nanio and s3s-fs; hours
	$(VENV)/bin/python -m pytest -n 2 --tier full tests/contract
	for store in minio versitygw nanio s3s-fs; do \
	    $(VENV)/bin/python -m pytest -n 2 --tier full --store $$store -m "not soak" \
	        tests/integration/test_stores.py tests/integration/test_stream.py \
	        tests/integration/test_durable.py tests/integration/test_two_writers.py || exit 1; \
	done

compat: $(STAMP)  ## what works with which server version; MYSQL=host:port S3=url: with your own (docs/compatibility.md)
	COMPAT_MYSQL='$(MYSQL)' COMPAT_S3='$(S3)' COMPAT_DEFAULTS='$(DEFAULTS)' $(VENV)/bin/python -m lab.compat

chaos: $(STAMP)  ## random faults: ROUNDS=10 SEED=n, 10 to 40 s a round (see docs/proof.md)
	$(VENV)/bin/python -m tests.chaos.run --rounds $(or $(ROUNDS),10) $(if $(SEED),--seed $(SEED)) --jobs $(or $(JOBS),1)

mutants: $(STAMP)  ## take out each safeguard of data, then mutate the pure packages: what no test misses fails; half an hour
	$(VENV)/bin/python -m pip install --quiet --group mutants
	$(VENV)/bin/python -m tests.mutants.run
	$(VENV)/bin/python -m tests.mutants.pure
	@echo "mutants: all caught or judged"

bench: $(STAMP)  ## measure seconds from commit to restorable, speed of catching up, of recovery and of serve; an hour or two (docs/benchmarks.md)
	$(VENV)/bin/python -m pip install --quiet --group bench
	for what in matrix long idle peers; do $(VENV)/bin/python -m bench.rpo $$what || exit 1; done
	for server in mysql mariadb; do $(VENV)/bin/python -m bench.restore --flavour $$server || exit 1; done
	$(VENV)/bin/python -m bench.catchup
	for server in mysql mariadb; do $(VENV)/bin/python -m bench.serve --flavour $$server || exit 1; done
	$(VENV)/bin/python -m bench.rpo report
	$(VENV)/bin/python -m bench.instances 1 10 50 --write

soak: $(STAMP)  ## what takes long: 5 GB in one, both machines gone, MINUTES=30 of quiet streaming
ifdef MINUTES
	MINUTES=$(MINUTES) $(VENV)/bin/python -m pytest -s --tier full -m soak tests/soak/test_quiet_run.py
else
	DURABLE_ROUNDS=20 DURABLE_SECONDS=2 $(VENV)/bin/python -m pytest --tier full -m "" tests/soak tests/integration/test_durable.py
endif

deploy-test: $(STAMP)  ## what is deployed, for real: systemd, images, packages; half an hour
	$(VENV)/bin/python -m pytest --tier full -m deploy tests/deploy

packages: $(STAMP)  ## a Debian package and an RPM, with an interpreter of their own, in dist/
	$(VENV)/bin/python -m lab.package dist

release: $(STAMP)  ## wheel, sdist, packages, list of parts and checksums in dist/, which must be empty
	$(VENV)/bin/python -m lab.release dist

docs: $(VENV)/.docs  ## the documents as a site in build/docs; a broken link or anchor ends it
	$(VENV)/bin/python -m sphinx -W --keep-going -n -q -j 2 -c docs/site . build/docs

$(VENV)/.docs: $(STAMP)
	$(VENV)/bin/python -m pip install --quiet --group docs
	@touch $@

clean:  ## remove what was made here; downloads stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find binlog2s3 lab bench tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove the downloads too
	rm -rf .cache
