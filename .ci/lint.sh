#!/bin/sh
# Every check that runs nothing of the project, two at a time. A check that passes says one line with its seconds; one that
# fails says all that it has to say.
set -u

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { # NAME COMMAND...
    name=$1
    shift
    begun=$(date +%s)
    if "$@" >"$work/out.$lane" 2>&1 </dev/null; then
        printf 'ok  %s (%s s)%s\n' "$name" "$(($(date +%s) - begun))" "$(grep '^not audited' "$work/out.$lane" | sed 's/^/: /')"
    else
        printf 'NO  %s\n' "$name"
        cat "$work/out.$lane"
        echo "$name" >>"$work/failed"
    fi
}

both_ways() {
    PYTHONPATH=functions:. .venv/bin/python -c 'import json; from tests.deploy.repository import translated; print(json.dumps(translated()))' \
        >"$work/translated.json" &&
        .venv-tools/bin/cfn-lint --regions us-east-1 --template template.yaml "$work/translated.json"
}

checkov() {
    PYTHONWARNINGS=ignore .venv-checkov/bin/checkov --config-file .ci/checkov.yaml -f "$work/translated.json"
}

(
    lane=1
    check "mypy --strict" .venv/bin/mypy
    check "pip-audit" .venv-tools/bin/python .ci/audit.py
) &
(
    lane=2
    check "ruff" .venv/bin/ruff check .
    check "ruff format of functions/" .venv/bin/ruff format --check -q functions
    check "cfn-lint, the template and its translation" both_ways
    check "checkov, the translation" checkov
    check "hadolint" .venv-tools/bin/hadolint container/Dockerfile
    check "secrets" .venv-tools/bin/python .ci/secrets.py
) &
wait

[ ! -e "$work/failed" ]
