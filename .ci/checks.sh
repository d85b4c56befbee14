#!/bin/sh
# checks.sh PYTEST-ARGUMENTS...
# Every check that plays on no running process: ruff, mypy, and these tests. All of them, in spite of one that fails.
set -u

# Linux shares a computer out by sessions: without this, a priority holds only against what is of the same session.
(echo 5 >/proc/self/autogroup) 2>/dev/null
failed=0

echo "== ruff"
.venv/bin/ruff check . || failed=1
echo "== mypy --strict"
.venv/bin/mypy || failed=1
echo "== pytest: what only computes"
.venv/bin/python -m pytest -p no:cacheprovider "$@" || failed=1
exit $failed
