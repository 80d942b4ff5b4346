#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer is told where packages are missing: tests/install.sh on Fedora, and tests/venv.sh when a build fails, shown by a
# pip that only says what pip says.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}"
# shellcheck source-path=SCRIPTDIR source=shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"

# ---- Fedora: no apt-get; its tools, of which only their presence counts ----
mkdir "$work/bin"
for tool in bash dirname sed; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done
for tool in dnf g++ cmake ninja pkg-config; do
    printf '#!/bin/sh\n' >"$work/bin/$tool"
    chmod +x "$work/bin/$tool"
done
expect 0 env PATH="$work/bin" bash "$ODC_SOURCE_DIR/tests/install.sh" build
contains "$err" "neither Debian nor Ubuntu"
line=$(grep -o 'dnf install .*' "$work/err")
contains "$(tr '\n' ' ' <"$ODC_SOURCE_DIR/docs/building.md")" "\`${line:-no line of dnf}\`"
rm "$work/bin/dnf"
expect 0 env PATH="$work/bin" bash "$ODC_SOURCE_DIR/tests/install.sh" build
case $err in *dnf*) fail "dnf is named where it is not: $err" ;; esac

# ---- a build of pip's that fails ----
mkdir -p "$work/tree/tests/harness" "$work/tree/build/python/bin"
cp "$ODC_SOURCE_DIR/tests/venv.sh" "$work/tree/tests/"
cp "$ODC_SOURCE_DIR/tests/harness/usage.sh" "$work/tree/tests/harness/"
printf '#!/bin/sh\n' >"$work/tree/build/python/bin/python"
printf '#!/bin/sh\ncat "%s" >&2\nexit 1\n' "$work/said" >"$work/tree/build/python/bin/pip"
chmod +x "$work"/tree/build/python/bin/*
cat >"$work/said" <<'SAID'
  error: subprocess-exited-with-error
  
  × Preparing metadata (pyproject.toml) did not run successfully.
  │ exit code: 1
  ╰─> [3 lines of output]
      Building libodc needs libhwloc (5.1 or later), which is not installed.
        Debian, Ubuntu: apt-get install libhwloc-dev
        Fedora: dnf install hwloc-devel
      [end of output]
  
  note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed
hint: See above for details.
SAID
expect 77 bash "$work/tree/tests/venv.sh"
contains "$out" "./bindings/python cannot be installed"
for line in "Building libodc needs libhwloc (5.1 or later), which is not installed." \
    "  Debian, Ubuntu: apt-get install libhwloc-dev" "  Fedora: dnf install hwloc-devel" "build/pip.log has all that pip said"; do
    grep -qxF -- "$line" "$work/out" || fail "'$line' is no line of: $out"
done
case $out in *hint:* | *originates* | *'of output'*) fail "it says more than the reason: $out" ;; esac
# What is not built here.
echo "ERROR: No matching distribution found for numpy==2.2.6" >"$work/said"
expect 77 bash "$work/tree/tests/venv.sh" checks
contains "$out" "numpy==2.2.6 pytest==8.4.2 mypy==1.18.2 ruff==0.14.5 cannot be installed: ERROR: No matching distribution"
contains "$out" "build/pip.log has all that pip said"

[ "$failures" -eq 0 ]
