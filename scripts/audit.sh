#!/bin/sh
# Asks the vulnerability databases that pip-audit knows about every package of a user's environment.
#
#   scripts/audit.sh [FOLDER]    FOLDER: a virtual environment; .venv-users by default (made by `make .venv-users/.installed`)
#
# Exit code 0: nothing is known against any of them. 1: something is, and it is printed. 75: no database could be
# reached, so nothing is known at all; it says so, and is no success.
set -eu
cd "$(dirname "$0")/.."
users=${1:-.venv-users}
tools=.venv-audit
report=build/audit.json

packages=$("$users/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
if [ ! -x "$tools/bin/pip-audit" ]; then
  "${PYTHON:-python3}" -m venv "$tools"
  "$tools/bin/python" -m pip install -q "pip-audit==2.10.1"
fi
mkdir -p build
for service in pypi osv; do
  rm -f "$report"
  code=0
  "$tools/bin/pip-audit" --path "$packages" --vulnerability-service "$service" --progress-spinner off --timeout 20 \
    --format json --output "$report" 2>build/audit.err || code=$?
  if [ -s "$report" ]; then
    code=0
    "$tools/bin/python" scripts/audit_report.py "$report" "$service" || code=$?
    [ "$code" -eq 2 ] || exit "$code"
    continue
  fi
  echo "audit: $service could not be asked (exit code $code): $(tail -n 1 build/audit.err | cut -c 1-300)" >&2
done
echo "audit: NOT DONE: no vulnerability database could be reached; nothing is known about the packages" >&2
exit 75
