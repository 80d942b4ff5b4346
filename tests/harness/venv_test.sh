#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Where tests/venv.sh takes torch from on a machine without a GPU, shown by a pip that only notes what it is told.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}"
# shellcheck source-path=SCRIPTDIR source=shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
[ "$(uname -m)" = x86_64 ] || { echo "torch's usual build is that for CPUs on $(uname -m)"; exit 77; }
! compgen -G '/dev/nvidia*' >/dev/null || { echo "there is an NVIDIA GPU here"; exit 77; }
mkdir -p "$work/tests/harness" "$work/build/python/bin"
cp "$ODC_SOURCE_DIR/tests/venv.sh" "$work/tests/"
cp "$ODC_SOURCE_DIR/tests/harness/usage.sh" "$work/tests/harness/"
printf '#!/bin/sh\n' >"$work/build/python/bin/python"
cat >"$work/build/python/bin/pip" <<'PIP'
#!/bin/sh
case $1 in
config) printf '%s' "$CONFIGURED" ;;
list) printf '%s' "$INSTALLED" ;;
install) echo "$*" >>told ;;
esac
PIP
chmod +x "$work"/build/python/bin/*

# installs VARIABLE=VALUE...: what pip is told of torch is in $told.
installs() {
    rm -f "$work/told"
    expect 0 env -u ODC_TORCH_INDEX CONFIGURED= INSTALLED= "$@" bash "$work/tests/venv.sh" torch
    told=$(grep 'torch==' "$work/told")
}

installs A=b
contains "$out" "torch for CUDA, 3 GB"
contains "$out" "ODC_TORCH_INDEX"
case $told in *--index-url*) fail "$told" ;; esac

installs ODC_TORCH_INDEX=https://example.org/cpu
same "$out" ""
contains "$told" "--no-deps --index-url https://example.org/cpu torch=="
same "$(grep -c . <<<"$told")" 2 # the second brings what torch needs, and from the usual index
same "$(grep -c example.org "$work/told")" 1

for set in ":env:.index-url='https://example.org'" "global.extra-index-url='https://example.org'" ":env:.find-links='/wheels'"; do
    installs CONFIGURED="$set"
    same "$out" ""
    case $told in *--index-url*) fail "$told" ;; esac
done

installs INSTALLED="torch==2.13.0" ODC_TORCH_INDEX=https://example.org/cpu
same "$out" ""
case $told in *--index-url*) fail "it is installed again: $told" ;; esac
[ "$failures" -eq 0 ]
