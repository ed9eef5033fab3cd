#!/bin/sh
# Make each secret that is missing in the folder $1. Only the user of the container that needs it can read it.
# Users: postgres 70, grafana 472, opa 1000, pdp 10001. Prometheus has the group of pdp.
set -eu
umask 077
cd "$1"

own() { [ "$(id -u)" != 0 ] || chown "$@"; }
random() { od -An -tx1 -N32 /dev/urandom | tr -d ' \n'; }
secret() { # FILE OWNER; the content is on standard input
    [ ! -s "$1" ] || return 0
    cat >"$1.new"
    chmod 400 "$1.new"
    own "$2" "$1.new"
    mv "$1.new" "$1"
}

chmod 711 .
[ -d service ] || { mkdir -m 750 service && own 0:10001 service; } # --secrets of the service
[ -d tokens ] || { mkdir -m 750 tokens && own 10001:10001 tokens; }
random | secret audit_key 10001
random | secret grafana_password 472
random | secret database_password 70
printf '*:*:*:pdp:%s\n' "$(cat database_password)" | secret pgpass 10001
random | secret opa_token 1000
secret service/tenants__default__opa_token 10001 <opa_token
