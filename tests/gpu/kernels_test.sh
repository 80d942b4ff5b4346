#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The PTX of the GPU kernels, of the library and of odc bench, matches their source, compiles without a warning or a spill for
# each generation of GPUs, and uses the expected instructions; the library's machine code is made from it. Needs nvcc, and nvdisasm or
# cuobjdump to check machine code.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}"
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
PATH=$PATH:/usr/local/cuda/bin:$(echo "$ODC_SOURCE_DIR"/build/python/lib/python3*/site-packages/nvidia/cu13/bin)

kernels=$ODC_SOURCE_DIR/lib/transport/cuda/kernels
(cd "$kernels" && sha256sum --check --quiet cubins.sha256) || fail "the machine code is of other PTX: run $kernels/make_cubin.sh"
[ "$failures" -eq 0 ] || exit 1

for tool in nvcc ptxas; do
    command -v $tool >/dev/null || { echo "$tool was not found"; exit 77; }
done
plain=$ODC_SOURCE_DIR/tools/gpu/kernels
seconds=120
notes=

release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
# compare FOLDER FILE...: with the output of make_ptx.sh there.
compare() {
    local folder=$1 file made_with
    shift
    made_with=$(sed -n 's/.* with nvcc \([0-9.]*\)\.$/\1/p' "$folder/$1")
    if [ "$release" != "$made_with" ]; then
        notes="$notes; $* not compared with what the source makes: that was nvcc $made_with, this is $release"
        return
    fi
    expect 0 bash "$folder/make_ptx.sh" "$work"
    for file; do
        cmp "$work/$file" "$folder/$file" || fail "$file is not what $folder/make_ptx.sh makes"
    done
}
compare "$kernels" add_sm80.ptx add_sm90.ptx exact_sm80.ptx
compare "$plain" plain_add.ptx

# The machine code is what the PTX here makes.
assembler=$(echo "$ODC_SOURCE_DIR"/build/python/lib/python3*/site-packages/nvidia/cuda_nvcc/bin/ptxas)
if [ -e "$assembler" ]; then
    chmod +x "$assembler" # pip leaves it without
    PTXAS=$assembler expect 0 bash "$kernels/make_cubin.sh" "$work"
    for file in add_sm80 add_sm90 exact_sm80 exact_sm90; do
        cmp "$work/$file.cubin" "$kernels/$file.cubin" || fail "$file.cubin is not what $kernels/make_cubin.sh makes"
    done
else
    notes="$notes; the cubins not compared with what ptxas of CUDA 12.1 makes, which was not found"
fi

for source in "$kernels/add.cu" "$kernels/exact.cu" "$plain/plain_add.cu"; do
    for generation in 80 90 100; do
        expect 0 nvcc -std=c++20 -O3 -I "$ODC_SOURCE_DIR/lib" -Werror all-warnings -arch=sm_$generation -cubin "$source" -o "$work/cubin"
        same "$out$err" ""
    done
done

# compile FOLDER PTX GENERATION KERNELS: the assembler accepts it and spills nothing.
compile() {
    expect 0 ptxas -v --warning-as-error -arch="sm_$3" "$1/$2.ptx" -o "$work/$2.$3.cubin"
    [ "$(grep -c ' 0 bytes spill stores, 0 bytes spill loads' <<<"$err")" -eq "$4" ] || fail "$2.ptx spills on sm_$3: $err"
}
# assemble PTX GENERATION
assemble() {
    compile "$kernels" "$1" "$2" 4
    [ "$(grep -cE 'Used ([12]?[0-9]|3[0-2]) registers' <<<"$err")" -eq 4 ] ||
        fail "$1.ptx takes more registers on sm_$2 than four blocks to a multiprocessor have: $err"
}
assemble add_sm80 80
assemble add_sm80 90
assemble add_sm90 90
assemble add_sm90 100

for generation in 80 90 100; do
    compile "$plain" plain_add $generation 4
    compile "$kernels" exact_sm80 $generation 5
done
# Loads and stores of four elements.
for type in f32 f64 bf16 f16; do
    entry=$(sed -n "/entry odc_plain_add_$type(/,/^}/p" "$plain/plain_add.ptx")
    for access in ld st; do
        grep -qE "$access\.global\.v[24]\.f(32|64)" <<<"$entry" || fail "odc_plain_add_$type has no vectors for $access"
    done
done

# System-scope additions and no other writes.
for file in add_sm80 add_sm90; do
    other=$(grep -E '^[[:space:]]*(@%p[0-9]+ )?(red|atom|st)\b' "$kernels/$file.ptx" |
        grep -vE 'red\.relaxed\.sys\.global\.add\.(f32|f64|v4\.f32) ')
    [ -z "$other" ] || fail "$file.ptx writes otherwise: $other"
done
other=$(grep -E '^[[:space:]]*(@%p[0-9]+ )?(red|atom|st)\b' "$kernels/exact_sm80.ptx" |
    grep -vE 'red\.relaxed\.sys\.global\.(add\.u64|max\.u64|or\.b32) |st\.global\.f32')
[ -z "$other" ] || fail "exact_sm80.ptx writes otherwise: $other"
! grep -E '\.ftz|\.approx|fma\.' "$kernels/exact_sm80.ptx" || fail "exact_sm80.ptx rounds otherwise than the host"

if command -v nvdisasm >/dev/null; then
    expect 0 nvdisasm -c "$kernels/add_sm90.cubin"
elif command -v cuobjdump >/dev/null; then
    expect 0 cuobjdump -sass "$kernels/add_sm90.cubin"
else
    out=
    notes="$notes; neither nvdisasm nor cuobjdump was found, so the PTX only was looked at"
fi
for type in f32 bf16 f16; do
    if [ -n "$out" ]; then
        # Vector reductions, and four vector loads in flight at the same time.
        kernel=$(awk -v name="odc_add_$type" '/\.text\.odc_|Function : / { inside = index($0, name) > 0 } inside' <<<"$out")
        grep -q 'REDG.*F32x4.*SYS' <<<"$kernel" || fail "odc_add_$type has no vector reductions on sm_90"
        loads=$(awk '/LDG\.E\.(64|128)/ { loads++ } /REDG/ { if (loads > most) most = loads; loads = 0 }
                     END { print most + 0 }' <<<"$kernel")
        [ "$loads" -eq 4 ] || fail "odc_add_$type has $loads vector loads under way together, not 4"
    else
        sed -n "/entry odc_add_$type(/,/^}/p" "$kernels/add_sm90.ptx" | grep -q 'red.relaxed.sys.global.add.v4.f32' ||
            fail "odc_add_$type has no vector reductions for sm_90"
    fi
done

[ "$failures" -eq 0 ] || exit 1
echo "13 kernels for sm_80, sm_90 and sm_100, by nvcc $release$notes"
