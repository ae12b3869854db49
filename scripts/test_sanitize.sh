#!/bin/sh
# Builds octavo._native with sanitizers and runs the kernel tests on it, every finding an error.
#
#   scripts/test_sanitize.sh [tests]            AddressSanitizer and UBSan: tests/unit/native, test_cpu.py
#   scripts/test_sanitize.sh --thread [tests]   ThreadSanitizer: the pool, and whole models on 2 and 3 threads
#
# The sanitizer's runtime is preloaded into the interpreter, which was built without it; the module stands in a package
# of links beside the ordinary one, which stays as it is. Leaks are not looked for: the interpreter has its own.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
kind=address
if [ "${1:-}" = "--thread" ]; then kind=thread; shift; fi
case "${1:-}" in -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

python=${PYTHON:-}
if [ -z "$python" ]; then
  if [ -x "$root/.venv/bin/python" ]; then python="$root/.venv/bin/python"; else python=python3; fi
fi
compiler=${CXX:-c++}

if [ "$kind" = thread ]; then
  build="$root/build/sanitize-thread"
  scripts/build_native.sh --sanitize=thread
  preload=$("$compiler" -print-file-name=libtsan.so)
else
  build="$root/build/sanitize"
  scripts/build_native.sh --sanitize
  preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
fi

package="$build/python/octavo"
rm -rf "$build/python"
mkdir -p "$package"
for entry in src/octavo/*; do
  case "$entry" in
    *_native*.so|*__pycache__*) ;;
    *) ln -s "$root/$entry" "$package/" ;;
  esac
done
for module in "$build"/_native*.so; do ln -s "$module" "$package/"; done

export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export TSAN_OPTIONS="halt_on_error=1:report_signal_unsafe=0${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
export PYTHONPATH="$build/python" PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1

if [ $# -gt 0 ]; then
  :
elif [ "$kind" = thread ]; then
  set -- tests/unit/native/test_thread_pool.py tests/unit/executors/test_cpu.py \
    -k "barrier or come_and_go or num_threads or 31_others or nan_fails"
else
  set -- tests/unit/native tests/unit/executors/test_cpu.py tests/security/test_s25_native.py
fi
# An editable install answers for octavo._native before any path does, with the ordinary build: its finder is taken out,
# and it is checked that the module under test is the one built here.
run='
import os, sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
import octavo._native, pytest
found = os.path.realpath(octavo._native.__file__)
assert found.startswith(os.path.realpath(os.environ["OCTAVO_SANITIZED"]) + os.sep), f"the tests would run {found}"
sys.exit(pytest.main(sys.argv[1:]))
'
# -s: a finding is written to standard error, which pytest would keep to itself when the interpreter ends.
OCTAVO_SANITIZED="$build" LD_PRELOAD="$preload" exec "$python" -c "$run" \
  -q -s -p no:cacheprovider -o "pythonpath=tests $build/python" "$@"
