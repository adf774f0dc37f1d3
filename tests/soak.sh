#!/bin/sh
# What repeats: five trainings in a row on one cluster, with their times, and a setup from bare nodes.
set -eu
. tests/cluster.sh
trap 'trackside local down --name "soak-$CLONE" --directory inventory/soak' EXIT
trackside local up --name "soak-$CLONE" --directory inventory/soak
trackside setup -i inventory/soak
trackside setup -i inventory/soak
for number in 1 2 3 4 5; do
  began=$(date +%s)
  trackside train train/mlp.py -i inventory/soak --name "soak-$number" -- --epochs 2
  echo "training $number took $(($(date +%s) - began)) s"
done
