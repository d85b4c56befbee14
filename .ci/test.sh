#!/bin/sh
# test.sh [apart]
# Every check but the local stack's own tests, or with `apart` those. What needs something that this computer lacks is left out and named at the end; with CI=true that is an
# error instead, so that nothing is ever left out unseen.
set -eu

left_out=
selection=
leave_out() { # MARKER NAME NEEDS
    selection="${selection:+$selection and }not $1"
    left_out="$left_out
not run: $2 (needs $3)"
}

if node --version >/dev/null 2>&1 && npm --version >/dev/null 2>&1; then
    if [ ! -d node_modules/asl-validator ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
        echo "== installing asl-validator"
        npm ci --no-audit --no-fund --loglevel=error
    fi
else
    leave_out needs_node "asl-validator on the state machines" "Node.js with npm"
fi

version=$(.venv-functions/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$version" != 3.12 ]; then
    leave_out needs_python312 "the handlers under Lambda's own Python" "Python 3.12; .venv-functions has $version"
fi

if [ -n "$left_out" ] && [ "${CI:-}" = true ]; then
    echo "CI runs every check, but:$left_out" >&2
    exit 1
fi

# Folders whose tests play on running processes: they wait for them most of the time, and hold some of them to seconds. They
# come first. Everything else only computes: it runs at the same time, of a lower priority.
played="tests/chaos tests/horizon tests/job tests/queue tests/report tests/story"
# The local stack's own tests: its AWS, its Kubernetes, and the template on them. `make test-local` runs them, and .ci/run.
apart="tests/local_cloud tests/local_kube"
others=
for folder in $played $apart; do others="$others --ignore=$folder"; done
asked=${1:-}
set -- ${selection:+-m "$selection"}

if [ "$asked" = apart ]; then
    failed=0
    # shellcheck disable=SC2086
    .venv/bin/python -m pytest $apart "$@" </dev/null || failed=1
    [ -z "$left_out" ] || echo "$left_out"
    exit $failed
fi

said=$(mktemp)
# shellcheck disable=SC2086  # several folders, several words
setsid nice -n 5 sh .ci/checks.sh $others "$@" >"$said" 2>&1 </dev/null &
checks=$!
# In a session of its own: Ctrl-C does not reach it.
trap 'kill -TERM -"$checks" 2>/dev/null || true; wait "$checks" 2>/dev/null || true; rm -f "$said"' EXIT
trap 'exit 130' INT TERM HUP

failed=0
echo "== pytest: what plays on running processes; the other checks run beside it, and are shown after it"
# shellcheck disable=SC2086
.venv/bin/python -m pytest $played "$@" </dev/null || failed=1
wait "$checks" || failed=1
cat "$said"

[ -z "$left_out" ] || echo "$left_out"
exit $failed
