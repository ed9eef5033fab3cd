#!/bin/sh
# Make the token with which Prometheus reads /metrics, once. $1 is the folder of the secrets.
set -eu
umask 027 # Prometheus has the group
cd "$1"
[ ! -s tokens/metrics ] || exit 0
PDP_AUDIT_KEY=$(cat audit_key) pdp token create prometheus --scope metrics >tokens/metrics.new
mv tokens/metrics.new tokens/metrics
