#!/bin/sh
# environment.sh FOLDER "VERSIONS" REQUIREMENTS...
# Makes the virtual environment where it is missing, with the first of these Python versions that is found, and installs
# the pinned requirements. May be run again at any time.
set -eu

folder=$1 versions=$2
shift 2

if ! "$folder/bin/python" -c '' 2>/dev/null; then
    # shellcheck disable=SC2086  # several versions, several words
    python=$(sh .ci/find-python.sh $versions) || {
        echo "$folder needs one of Python $versions with its venv module; none was found on PATH or below pyenv." >&2
        exit 1
    }
    echo "== making $folder with $python"
    "$python" -m venv "$folder"
fi

files=
for file in "$@"; do files="$files -r $file"; done
echo "== installing into $folder: $*"
# Every file names all that it needs, so nothing is left to resolve. Only what is imported gets compiled, below: all of
# it would take longer than the rest of the installation.
# shellcheck disable=SC2086
"$folder/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-compile $files

torch=$(cat "$@" | grep '^torch==' || true)
if [ -n "$torch" ] && ! "$folder/bin/python" -c 'import torch' 2>/dev/null; then
    echo "== this build of torch needs CUDA libraries, although nothing here uses a GPU: installing them (about 3 GB)."
    echo "   To avoid that, make PyTorch's CPU index known to pip (PIP_EXTRA_INDEX_URL), then: make clean, and again."
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check --no-input "$torch"
fi

if [ -n "$torch" ] && cat "$@" | grep -q '^moto=='; then
    # Compiled here once, instead of in many Ray processes at the same time.
    "$folder/bin/python" -W ignore -c 'import torch, transformers, peft, skyrl_gym, ray.job_submission, moto.server, matplotlib.pyplot'
fi
