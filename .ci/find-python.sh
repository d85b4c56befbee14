#!/bin/sh
# Prints the first usable interpreter among the versions asked for, in that order: `find-python.sh 3.11 3.12`.
# Looks on PATH and below pyenv's folder; usable means that it runs and can make virtual environments.
# Exit status 1 and no output where there is none.

usable() {
    "$1" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$2')" >/dev/null 2>&1
}

pyenv_root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || echo "$HOME/.pyenv")}

for version in "$@"; do
    for candidate in "python$version" python3 python "$pyenv_root"/versions/"$version".*/bin/python"$version"; do
        if usable "$candidate" "$version"; then
            # A pyenv shim answers for whatever version is selected at the moment: name the program behind it.
            "$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            exit 0
        fi
    done
done
exit 1
