#!/bin/sh
# Writes deploy/requirements.lock and deploy/build.lock: every package of an image, pinned, with the hashes of its files.
#
#   scripts/lock_requirements.sh            newest versions that pyproject.toml allows
#
# Resolved for the Python that runs it, which should be the image's; the hashes are those of every platform's files.
set -eu
cd "$(dirname "$0")/.."
tools=.venv-audit
if [ ! -x "$tools/bin/pip-compile" ]; then
  [ -x "$tools/bin/python" ] || "${PYTHON:-python3}" -m venv "$tools"
  "$tools/bin/python" -m pip install -q "pip-tools==7.6.2"
fi
mkdir -p build
lock() {  # lock SOURCE OUTPUT
  "$tools/bin/pip-compile" -q --strip-extras --generate-hashes --allow-unsafe --no-header --no-annotate \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --output-file build/new.lock "$1"
  { echo '# Made by scripts/lock_requirements.sh; change pyproject.toml, not this file.'; cat build/new.lock; } >"$2"
  rm build/new.lock
}
lock pyproject.toml deploy/requirements.lock
printf 'scikit-build-core>=0.11\nnanobind>=2.4\ncmake>=3.20\nninja\n' >build/build.in
lock build/build.in deploy/build.lock
