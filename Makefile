# Everything from a bare machine: `make demo` to see it, `make test` for all that CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONDONTWRITEBYTECODE := 1
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
PACKAGES := podman runc mmdebstrap netavark aardvark-dns iptables iproute2 openssh-client python3-venv uidmap
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo test lint unit molecule soak system clean

demo: $(VENV)/.done
	$(SUDO) env PATH="$$PATH" sh tests/demo.sh

test: $(VENV)/.done
	sh tests/all.sh

soak: $(VENV)/.done
	sh tests/soak.sh

lint: $(VENV)/.done
	ruff check .
	ruff format --check .
	mypy
	yamllint --strict .
	ANSIBLE_INVENTORY=inventory/example/hosts.yml ansible-lint --offline --profile production playbooks roles

unit: $(VENV)/.done
	pytest

molecule: $(VENV)/.done
	sh tests/molecule.sh

system:
	@command -v podman >/dev/null && command -v mmdebstrap >/dev/null && command -v ssh-keygen >/dev/null && \
	  command -v iptables >/dev/null && $(PYTHON) -c 'import ensurepip' || { \
	  $(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -q --no-install-recommends $(PACKAGES); }

$(VENV)/.done: pyproject.toml | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	-$(SUDO) env PATH="$$PATH" trackside local down
	rm -rf $(VENV)
