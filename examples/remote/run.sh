#!/bin/sh
# A wire above the agent's limit, at a service that is killed twice meanwhile: see README.md. Needs pdp, curl and python3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
port=${PORT:-8181}
store="sqlite:///$work/pdp.db"
PDP_URL="http://127.0.0.1:$port"
export PDP_URL

supervise() { # start the service again whenever it has died
    while [ ! -e "$work/over" ]; do
        pdp serve --project "$here/../payments/pdp.yaml" --store "$store" --port "$port" >>"$work/serve.log" 2>&1 &
        echo $! >"$work/pid"
        wait $! || :
    done
}
ended() {
    touch "$work/over"
    kill "$(cat "$work/pid")" 2>/dev/null || :
    wait
    rm -rf "$work"
}
token() { # NAME SESSION SCOPE...: a token for whom the session's claims name
    name=$1 session=$2
    shift 2
    pdp token create "$name" --session "$session" --store "$store" "$@" --json 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])'
}

cat >"$work/wire.sh" <<END
#!/bin/sh
cat >>"$work/wires"
kill -9 "\$(cat "$work/pid")"
echo '{"wire_id": "w-1"}'
END
chmod +x "$work/wire.sh"
echo '{"claims": {"sub": "supervisor-9", "roles": ["payments.approver"]}}' >"$work/supervisor.json"

supervise &
trap ended EXIT
until curl -fs "$PDP_URL/readyz" >/dev/null; do sleep 0.2; done
agent=$(token agent "$here/../payments/session.json" --scope propose --scope assert)
supervisor=$(token supervisor "$work/supervisor.json" --scope approve)

mkdir "$work/first" "$work/second"
PDP_TOKEN=$agent "$here/agent.sh" "$work/first" "$work/wire.sh" &
first=$!
until [ -s "$work/first/approval" ]; do sleep 0.2; done

kill -9 "$(cat "$work/pid")"
echo "the service is killed while the agent waits"
until curl -fs "$PDP_URL/readyz" >/dev/null; do sleep 0.2; done

approval=$(cat "$work/first/approval")
PDP_TOKEN=$supervisor pdp approvals show "$approval" --service "$PDP_URL" |
    sed -n -e 's/^  argument *amount/supervisor sees: amount/p' -e 's/^  asked by */supervisor sees: asked by /p'
PDP_TOKEN=$supervisor pdp approvals grant "$approval" --service "$PDP_URL" >/dev/null
wait $first

echo "the same proposal once more:"
PDP_TOKEN=$agent "$here/agent.sh" "$work/second" "$work/wire.sh"
echo "wires made: $(wc -l <"$work/wires" | tr -d ' ')"
