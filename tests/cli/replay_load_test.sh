#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# odc replay on a quiet machine and on a busy one, which a library says that this one is: what the verdict and the picture say of a
# gain, and how long disturbed pairs are repeated.
set -u

odc=${ODC:?names the odc command}
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
seconds=300
# others PERCENT ARGUMENT...: odc replay beside programs that use so much of the processors.
others() {
    local percent=$1
    shift
    expect 0 env LD_PRELOAD="${ODC_BUILD_DIR:?the folder of the build}/tests/cli/libmachine_load.so" ODC_TEST_OTHERS="$percent" \
        "$odc" replay --ranks 4 --minibatch 2 --json "$@"
}
# holds CODE: Python, of the JSON object `j`.
holds() {
    python3 -c "import json, sys; j = json.load(open(sys.argv[1]))
$1" "$work/out" 2>"$work/why" || fail "$(tail -n 1 "$work/why"), in: $(head -c 500 "$work/out")"
}

# ---- quiet ----
# The verdict has the idle shares of the baseline and of the last arm. With emulated hosts it does not ask whether arms came near
# their ideals, which a machine that is busy after all prevents.
printf '%s\n' 65536 20000 3000 41000 9000 65536 500 12000 >"$work/lengths"
idle='last = j["arms"][-1]["idle"]
base = next(a["idle"] for a in j["arms"] if (a["schedule"], a["policy"]) == ("collective", "lb-micro"))
idle = f"idle {100 * base:.0f} % -> {100 * last:.0f} %"
assert j["others_cpu_share"] < 0.01 and j["pairs_repeated"] == 0, "the stand-in for a quiet machine"
'
others 0 --lengths "$work/lengths" --minibatches 3 --seconds 3 --scale 65536
holds "$idle
assert idle in j['verdict'] if j['verdict'].startswith('verdict: these lengths: ') else ' of its own ideal' in j['verdict']"
if "$odc" info | grep -q "fabric *ready"; then
    for minibatches in 3 4; do
        others 0 --lengths "$work/lengths" --hosts 2 --minibatches $minibatches --seconds 3 --scale 65536 --timeline "$work/t.svg"
        holds "$idle
assert j['verdict'].startswith('verdict: these lengths and links: ') and idle in j['verdict']"
        python3 - "$work/t.svg" $minibatches 2>"$work/why" <<'PYTHON' || fail "$(tail -n 1 "$work/why")"
import re, sys

svg = open(sys.argv[1]).read()
# The whole run's speedup; another one only where other minibatches than the whole run's are pictured.
assert svg.count("The whole run: ") == 1 and len(re.findall(r"median [\d.]+x, over collective", svg)) == 1, "the whole run"
assert ("×" in svg) == (int(sys.argv[2]) > 3), "a second speedup of the same minibatches"
# No text crosses the end of the last panel's last minibatch, by DejaVu Sans's width of digits.
ends = [float(x) for x in re.findall(r'<path d="M([\d.]+),[\d.]+V[\d.]+" stroke="#1d2733" stroke-width="1.5"/>', svg)]
beside = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle" font-size="(\d+)" [^>]*>([^<]*[^\d.<][^<]*)</text>', svg)
for x, size, text in beside:
    half = 0.636 * float(size) * len(text) / 2
    assert ends[-1] <= float(x) - half and float(x) + half <= 1198, (text, x, ends[-1])
PYTHON
    done
else
    echo "with emulated hosts: skipped, $("$odc" info | grep fabric)"
fi

# ---- busy ----
# Half of the pairs are repeated, at most, and only while that ends within one and a half times --seconds: asked for a tenth of a
# second, gigabytes take longer at once.
others 100 --minibatches 6 --seconds 4 --scale 65536
holds 'took = sum(a["seconds"] for a in j["arms"])
assert j["others_cpu_share"] > 0.99 and j["verdict"].startswith("verdict: not resolved: other programs used 100 %")
assert j["pairs_repeated"] <= 3 and (j["pairs_repeated"] >= 1 or took > 1.05 * 4), (j["pairs_repeated"], took)'
others 100 --minibatches 4 --seconds 0.1 --scale 512
holds 'assert j["pairs_repeated"] == 0, j["pairs_repeated"]'

# While pairs are repeated there is time left.
cat >"$work/time_left.py" <<'PYTHON'
import re, sys, terminal

status, out, shown = terminal.run(sys.argv[1:])
assert status == 0, shown
shares = [int(share) for share in re.findall(rb"\] +(\d+) %[^\r]*repeats minibatch", shown)]
assert not shares or max(shares) < 100, shares
assert shares or b"pairs repeated" not in out, out
PYTHON
expect 0 env LD_PRELOAD="$ODC_BUILD_DIR/tests/cli/libmachine_load.so" ODC_TEST_OTHERS=100 \
    PYTHONPATH="$ODC_SOURCE_DIR/tests/harness" python3 "$work/time_left.py" \
    "$odc" replay --ranks 2 --minibatch 2 --minibatches 4 --seconds 4 --scale 65536

[ "$failures" -eq 0 ]
