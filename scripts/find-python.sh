#!/bin/sh
# Prints the first interpreter that is Python 3.11 or newer and can make virtual environments; $PYTHON goes first.
# Says what is missing and exits 1 when there is none.

too_old=""
no_venv=""
for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python python3.14; do
    # A version manager's shim may exist and still refuse to run, so ask the interpreter itself.
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        too_old="$candidate is Python $version"
    elif ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
        no_venv="$candidate (Python $version)"
    else
        command -v "$candidate"
        exit 0
    fi
done

if [ -n "$no_venv" ]; then
    echo "setup: $no_venv cannot make virtual environments: its venv or ensurepip module is missing." >&2
    echo "       On Debian and Ubuntu: apt-get install python3-venv" >&2
elif [ -n "$too_old" ]; then
    echo "setup: superfluid needs Python 3.11 or newer; $too_old." >&2
    echo "       Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
else
    echo "setup: superfluid needs Python 3.11 or newer; none was found on the PATH." >&2
    echo "       Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
fi
exit 1
