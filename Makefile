# Everything a newcomer or CI needs. Works with GNU make 3.81 (the one macOS ships) and only uses relative paths, so the
# checkout may live in a folder with spaces in its name.
#
#   make serve                     set up, then serve the embedded model      (ARGS="--port 9000" adds flags)
#   make test                      set up, then run the test suite            (ARGS="tests/chat -x" narrows it)
#   make check                     format, lint, strict types, tests: what CI wants to see
#   make torture                   kill daemon and worker 200 times under load (ARGS="--kills 20 --engine fake")
#   make soak                      all kinds of clients for three minutes, dying workers (ARGS="--seconds 600 --seed 5")
#   make fuzz                      a million wrong and half-wrong frames       (ARGS="--frames 100000 --only daemon")
#   make bench                     compare with llama-server and others       (ARGS="--quick --only decode")

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
ARGS :=

# A stamp says that these extras were installed for this pyproject.toml. It is written last, so a failed set-up is
# simply tried again.
SETUP_SOURCES := pyproject.toml scripts/bootstrap.py scripts/find-python.sh

.PHONY: help serve test check format format-check lint types torture soak fuzz bench clean

help:
	@sed -n 's/^#   //p' Makefile

serve: $(STAMPS)/serve
	@exec $(PY) -m superfluid.cli.main serve $(ARGS)

test: $(STAMPS)/test
	$(PY) -m pytest $(ARGS)

check: format-check lint types test

format-check: $(STAMPS)/check
	$(PY) -m ruff format --check .

lint: $(STAMPS)/check
	$(PY) -m ruff check .

types: $(STAMPS)/check
	$(PY) -m mypy

format: $(STAMPS)/check
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

torture: $(STAMPS)/test
	$(PY) scripts/torture.py $(ARGS)

soak: $(STAMPS)/test
	$(PY) scripts/soak.py $(ARGS)

fuzz: $(STAMPS)/fuzz
	$(PY) scripts/fuzz.py $(ARGS)

bench: $(STAMPS)/bench
	$(PY) -m benchmarks $(ARGS)

$(STAMPS)/serve: $(SETUP_SOURCES)
	@sh scripts/setup.sh serve tui

$(STAMPS)/test: $(SETUP_SOURCES)
	@sh scripts/setup.sh test

# mypy reads the tests and the benchmarks, so it needs what they import.
$(STAMPS)/check: $(SETUP_SOURCES)
	@sh scripts/setup.sh check test

$(STAMPS)/fuzz: $(SETUP_SOURCES)
	@sh scripts/setup.sh fuzz test

$(STAMPS)/bench: $(SETUP_SOURCES)
	@sh scripts/setup.sh bench

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info benchmarks/out
