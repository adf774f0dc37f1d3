#!/bin/sh
# From nothing to three nodes that train as one.
set -eu
began=$(date +%s)
trackside local up --prepared
trackside setup -i inventory/local
trackside check -i inventory/local
trackside train train/mlp.py -i inventory/local
cat <<TEXT

Three nodes trained as one, $(($(date +%s) - began)) s after the start.
  look at a node      ssh -F inventory/local/ssh_config node1
  train on openmpi    trackside train train/mlp.py --launcher openmpi
  your own machines   trackside init node1 node2 node3 && trackside setup && trackside train train/mlp.py
  remove the nodes    trackside local down
(these commands are in .venv/bin: . .venv/bin/activate)
TEXT
