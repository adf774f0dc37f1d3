#!/bin/sh
# All that CI runs, one part after another; the first failure ends it, and no node is left behind.
set -eu
. tests/cluster.sh
trap 'trackside local down --name "$TEST_CLUSTER" --directory inventory/test >/dev/null' EXIT
passed=0
part() {
  began=$(date +%s)
  echo "== $*"
  if "$@"; then
    passed=$((passed + 1))
    echo "== $* took $(($(date +%s) - began)) s"
  else
    echo "$passed passed, 1 failed: $*"
    exit 1
  fi
}
part ruff check .
part ruff format --check .
part mypy
part yamllint --strict .
part env ANSIBLE_INVENTORY=inventory/example/hosts.yml ansible-lint --offline --profile production playbooks roles
part pytest
part sh tests/molecule.sh
echo "$passed passed, 0 failed"
