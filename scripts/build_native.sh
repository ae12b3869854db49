#!/bin/sh
# Builds octavo._native for development, incrementally, and puts it beside the Python sources.
#
#   scripts/build_native.sh                        Release, in build/dev, to src/octavo/
#   scripts/build_native.sh --sanitize             AddressSanitizer and UBSan, in build/sanitize, stays there:
#                                                  scripts/test_sanitize.sh builds it and runs the kernel tests
#   scripts/build_native.sh --sanitize=thread      ThreadSanitizer, in build/sanitize-thread
#
# PYTHON names the interpreter (default: .venv/bin/python, else python3); it must have nanobind and, for ninja, ninja.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
sanitize=""
build="$root/build/dev"
for argument in "$@"; do
  case "$argument" in
    --sanitize) sanitize="address,undefined"; build="$root/build/sanitize" ;;
    --sanitize=thread) sanitize="thread"; build="$root/build/sanitize-thread" ;;
    --sanitize=*) echo "build_native.sh: --sanitize takes nothing or =thread" >&2; exit 2 ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "build_native.sh: unknown option $argument (try --help)" >&2; exit 2 ;;
  esac
done

python=${PYTHON:-}
if [ -z "$python" ]; then
  if [ -x "$root/.venv/bin/python" ]; then python="$root/.venv/bin/python"; else python=python3; fi
fi
PATH="$(dirname "$(command -v "$python")"):$PATH"
mkdir -p "$root/build"
generator=""
if command -v ninja >/dev/null 2>&1; then generator="-G Ninja"; fi

# shellcheck disable=SC2086
cmake -S "$root" -B "$build" $generator -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v "$python")" \
  -DOCTAVO_SANITIZE="$sanitize" -DOCTAVO_SYMBOLS=ON >"$build.configure.log" 2>&1 || { cat "$build.configure.log" >&2; exit 1; }
cmake --build "$build" --parallel "${JOBS:-2}"
if [ -z "$sanitize" ]; then
  for module in "$build"/_native*.so; do cp "$module" "$root/src/octavo/.native.tmp"; mv "$root/src/octavo/.native.tmp" "$root/src/octavo/$(basename "$module")"; done
fi
