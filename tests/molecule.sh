#!/bin/sh
# Every scenario on one shared set of nodes; with a name, that scenario alone.
set -eu
export MOLECULE_GLOB='tests/molecule/*/molecule.yml'
unset ANSIBLE_CONFIG
trackside local down --name test --directory inventory/test
if [ $# -gt 0 ]; then
  exec molecule test --scenario-name "$1"
fi
exec molecule test --all
