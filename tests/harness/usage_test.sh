#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every script that has a usage prints it on standard output for --help, and ends with 0; for an unknown option on standard error, and
# ends with 2. Wherever it is called from.
set -u
# shellcheck source-path=SCRIPTDIR source=shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"

mapfile -t scripts < <(cd "$ODC_SOURCE_DIR" && grep -rl --include='*.sh' 'usage: ' bindings docs lib packaging tests tools |
    grep -v '_test\.sh$' | xargs grep -L 'To be sourced' | sort)
for script in bindings/python/bench/fsdp2_hosts.sh docs/schedules.sh lib/transport/cuda/kernels/make_ptx.sh packaging/build_deb.sh \
    packaging/abi/check.sh tests/install.sh tests/run.sh tests/venv.sh tests/harness/hosts.sh tests/perf/table.sh tools/demo.sh; do
    [[ " ${scripts[*]} " == *" $script "* ]] || fail "$script has no usage"
done
own=$(cd "$ODC_SOURCE_DIR" && grep -LE '/usage\.sh|replay_rows\.sh' "${scripts[@]}")
[ -z "$own" ] || fail "these print a usage without usage.sh: $own"
cd "$work" || exit 1
for script in "${scripts[@]}"; do
    for help in --help -h; do
        expect 0 bash "$ODC_SOURCE_DIR/$script" $help
        contains "$out" "usage: "
        same "$err" ""
    done
    usage=$out
    expect 2 bash "$ODC_SOURCE_DIR/$script" --no-such-option
    same "$out" ""
    same "$err" "$usage"
done
# Also where the script's own folder is the current one.
cd "$ODC_SOURCE_DIR/tests" || exit 1
expect 0 bash run.sh --help
contains "$out" "usage: tests/run.sh"
expect 2 bash run.sh --no-such-option
contains "$err" "usage: tests/run.sh"
expect 2 bash run.sh quick contract/phases
same "$err" "run.sh: the tier quick takes no more arguments: contract/phases"

[ "$failures" -eq 0 ]
