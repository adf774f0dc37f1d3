# The name of a cluster for tests: one for each clone, so that two clones on one machine do not meet.
CLONE=$(pwd -P | cksum | cut -d ' ' -f 1)
export TEST_CLUSTER="test-$CLONE"
