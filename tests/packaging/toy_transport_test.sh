#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds a transport to a copy of the sources as lib/transport/README.md says, with the page's own patch: the layers hold, the
# route of each pair of a host is that one, and the contract's tests of host memory pass over nothing else there, those of one
# host and those of several ranks on each of several; of the nine random jobs with a node cache one. A transport that loses
# additions fails them.
set -u
sources=${ODC_SOURCE_DIR:?the folder of the sources}
# shellcheck source=tests/harness/shell_checks.sh
. "$sources/tests/harness/shell_checks.sh"
trap 'exit 1' INT TERM
needs patch ninja || { echo "skipped: $why"; exit 77; }
tree=$work/tree
seconds=600

mkdir "$tree"
cp -r "$sources"/{CMakeLists.txt,CMakePresets.json,cuda,docs,include,lib,packaging,tests,tools} "$tree/"
cd "$tree" || exit 1

# ---- what the page says ----
mkdir lib/transport/pipe
cp tests/data/toy_transport/* lib/transport/pipe/
awk '/^```diff$/ {inside = 1; next} /^```$/ {inside = 0} inside' lib/transport/README.md >"$work/page.patch"
expect 0 patch --batch --fuzz=0 -p1 -i "$work/page.patch"
sed -i -E 's/^(#define ODC_LAYOUT_VERSION) [0-9]+$/\1 4000000001/' lib/base/layout_version.cc
grep -q "ODC_LAYOUT_VERSION 4000000001" lib/base/layout_version.cc || fail "the layouts have no number to raise"
ODC_SOURCE_DIR=$tree expect 0 bash tests/unit/layers_test.sh
[ "$failures" -eq 0 ] || exit 1

# ---- the contract over it ----
# shellcheck source=tests/harness/compiler_cache.sh
. tests/harness/compiler_cache.sh
build=build/release # as far from the sources as there, so a compiler cache has the same objects

expect 0 cmake --preset release -DODC_TOOLS=ON -DODC_TESTS=ON
# Nothing goes this way between ranks on hosts of their own and on GPUs, nor in the tests of plans, the rendezvous and
# bad arguments.
ctest --test-dir $build -N -R '^contract/' -E '_on_gpus|_over_(fabric|net)$|_local$|/(plan|plan_makespans|tail|window|rendezvous|bad_input)$' |
    sed -n 's/^ *Test .*: //p' | grep -vE '/random_cache_(2x4|3x2|2x2_(off|2000))' >"$work/contract"
[ "$(wc -l <"$work/contract")" -gt 25 ] || fail "only these are tests of the contract: $(cat "$work/contract")"
for name in minibatch minibatch_mixed random_cache_2x2_auto; do
    grep -qx "contract/$name" "$work/contract" || fail "$name is not among the tests of the contract: $(cat "$work/contract")"
done
targets() { sed 's,^,^,; s,$, ,' | grep -f - $build/tests/needed.txt | cut -d ' ' -f 2- | tr ' ' '\n' | sort -u; }
make() { bounded 1500 cmake --build $build --target "$@" >"$work/build.log" 2>&1 || fail "$(tail -n 20 "$work/build.log")"; }
contract() {
    ODC_TRANSPORTS=pipe,fabric ODC_TEST_TRANSPORT=pipe bounded 1500 \
        ctest --test-dir $build -j 2 --output-on-failure -R "^($1)\$" >"$work/ctest.log" 2>&1
}

mapfile -t needed < <(targets <"$work/contract")
make odc_command unit_route "${needed[@]}"
[ "$failures" -eq 0 ] || exit 1
odc=$(find "$tree/$build" -name odc -type f -perm /1)
expect 0 "$odc" info
contains "$out" pipe
expect 0 env ODC_TRANSPORTS=pipe "$odc" run -n 3 -- "$odc" topo --why
[ "$(grep -cE '^\[0\] [0-2] to [0-2]  pipe: the same host; not shm: ODC_TRANSPORTS of rank [0-2] leaves it out; fabric: ' \
    "$work/out")" -eq 6 ] || fail "the routes are others: $out"
expect 0 "$odc" run -n 2 -- "$odc" topo --why 0 1
contains "$out" "0 to 1  shm: the same host; not pipe: shm is faster; fabric: never inside a host, where shm is faster"
expect 0 env ODC_TRANSPORTS=pipe "$odc" bench gather --bytes 64KiB --pairs 1 --sample-ms 1 --json
contains "$out" '"limit_gbps"' # beside a bare copy, as inside a host
expect 0 env ODC_SOURCE_DIR="$tree" "$build/tests/unit/route_test"
failed_output='/ Test +#.*\*\*\*/ {inside = 1} /^ *Start |Passed/ {inside = 0} inside'
contract "$(paste -sd '|' "$work/contract")" || fail "$(awk "$failed_output" "$work/ctest.log")"
tail -n 4 "$work/ctest.log"

# ---- a transport that is wrong ----
sed -i 's/^ *add_to_stripe(/if (index != 1) &/' lib/transport/pipe/pipe.cc
mapfile -t needed < <(targets <<<contract/minibatch)
make "${needed[@]}"
for name in minibatch minibatch_mixed; do
    ! contract "contract/$name" || fail "$name does not miss what is never added"
done

[ "$failures" -eq 0 ]
