#!/bin/sh
# Every check. What needs something that this computer lacks is left out and named at the end; with CI=true that is an
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

echo "== ruff"
.venv/bin/ruff check .
echo "== mypy --strict"
.venv/bin/mypy
echo "== pytest"
.venv/bin/python -m pytest ${selection:+-m "$selection"} "$@" </dev/null

[ -z "$left_out" ] || echo "$left_out"
