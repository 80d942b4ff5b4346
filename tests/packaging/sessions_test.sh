#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The pages' shell sessions print what the pages show (sessions.py), with this tree's Python package and the odc command on the PATH.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}" "${ODC:?the odc command}"
# shellcheck source=tests/harness/shell_checks.sh
. "$(dirname "$0")/../harness/shell_checks.sh"
if ! needs python3 cc:gcc; then
    echo "$why"
    exit 77
elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "$(python3 --version) is older than 3.10, which the package needs"
    exit 77
fi

mkdir "$work/bin" "$work/job"
ln -s "$ODC" "$work/bin/odc"
cp -r "$ODC_SOURCE_DIR/bindings/python/libodc" "$work/libodc"
ln -s "$ODC_BUILD_DIR/lib/libodc.so.0" "$work/libodc/"
expect 0 cc -O2 -shared -fPIC "$ODC_SOURCE_DIR/bindings/python/native.c" -o "$work/libodc/libodc_native.so"
PATH=$work/bin:$PATH PYTHONPATH=$work python3 "$ODC_SOURCE_DIR/tests/packaging/sessions.py" "$ODC_SOURCE_DIR" "$work/job" ||
    fail "the pages show something else"
[ "$failures" -eq 0 ]
