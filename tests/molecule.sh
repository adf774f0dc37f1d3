#!/bin/sh
# Every scenario on one shared set of nodes; with a name, that scenario alone.
set -eu
. tests/cluster.sh
export MOLECULE_GLOB='tests/molecule/*/molecule.yml'
unset ANSIBLE_CONFIG
trackside local down --name "$TEST_CLUSTER" --directory inventory/test
# A folder of its own for molecule's state: what an interrupted run noted about its nodes is not true of ours.
MOLECULE_EPHEMERAL_DIRECTORY=$(mktemp -d)/molecule
export MOLECULE_EPHEMERAL_DIRECTORY
trap 'rm -rf "${MOLECULE_EPHEMERAL_DIRECTORY%/molecule}"' EXIT
if [ $# -gt 0 ]; then
  molecule test --scenario-name "$1"
else
  molecule test --all
fi
