#!/bin/sh
# setup.sh STAMP [EXTRA]: finds a Python and hands over to bootstrap.py (kept apart because bootstrap.py needs Python 3.11).
here=$(dirname "$0")
python=$(sh "$here/find-python.sh") || exit 1
exec "$python" "$here/bootstrap.py" "$@"
