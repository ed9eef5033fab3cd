#!/bin/sh
# An agent without Python: it proposes a wire, waits for a person, makes the wire and reports what came of it.
#
#   PDP_URL=... PDP_TOKEN=... agent.sh FOLDER TOOL
#
# FOLDER is for its files; TOOL is the program that makes the wire: arguments on standard input, result on standard output,
# both JSON. What the service did not answer is asked again with the same id and body, which takes nothing twice. The tool
# is run once.
set -eu
folder=$1
tool=$2
id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') # of this call: 128 random bits

json() { # the value at a path, of the object on standard input
    python3 -c 'import functools, json, sys
value = functools.reduce(lambda value, name: value[name], sys.argv[1].split("."), json.load(sys.stdin))
print(value if isinstance(value, str) else json.dumps(value))' "$1"
}

ask() { # METHOD PATH [FILE]: the service is asked until it answers
    while :; do
        status=$(curl -sS -X "$1" -H @"$folder/headers" ${3:+--data-binary @"$3"} -o "$folder/answer" -w '%{http_code}' \
            "$PDP_URL$2" 2>>"$folder/curl.log") || status=000
        case $status in
        200) return ;;
        000 | 408 | 429 | 5??) sleep 0.2 ;;
        *) cat "$folder/answer" >&2 && exit 1 ;;
        esac
    done
}

printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$PDP_TOKEN" >"$folder/headers"
cat >"$folder/proposal.json" <<END
{
  "id": "$id",
  "proposal": {
    "tool": "initiate_wire",
    "arguments": {
      "beneficiary_id": "bene-acme-441", "amount": 47500, "source_account": "acct-operating-4412", "reference": "INV-8842"
    }
  },
  "session": {
    "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"},
    "idempotency_key": "pay-INV-8842"
  }
}
END

ask POST /v1/proposals "$folder/proposal.json"
verdict=$(json verdict <"$folder/answer")
echo "agent: $verdict"
if [ "$verdict" = STEP_UP ]; then
    approval=$(json approval.id <"$folder/answer")
    echo "$approval" >"$folder/approval"
    state=pending
    while [ "$state" = pending ]; do
        ask GET "/v1/approvals/$approval?wait=55s"
        state=$(json state <"$folder/answer")
    done
    echo "agent: the approval is $state"
    ask POST /v1/proposals "$folder/proposal.json"
fi
if [ "$(json begun <"$folder/answer")" = true ]; then
    result=$(json arguments <"$folder/answer" | "$tool")
    echo "agent: the wire is made"
    echo "{\"execution\": {\"started\": true, \"result\": $result}}" >"$folder/result.json"
    ask POST "/v1/proposals/$id/result" "$folder/result.json"
fi
echo "agent: $(json verdict <"$folder/answer"), replayed $(json replayed <"$folder/answer"), $(json result <"$folder/answer")"
