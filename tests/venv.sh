#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the virtual environment build/python, if it does not exist, with the package libodc of this tree, and installs what is
# named. Exits with 77 and the reason where that is impossible.
#
# usage: tests/venv.sh [checks] [torch] [pictures] [libraries] [torchtitan] [verl] | disassembler | nvml | scipy
#   disassembler (of GPU code), nvml (its header) and scipy (for perf/compare.sh) leave the package out
set -eu
# shellcheck source-path=SCRIPTDIR source=harness/usage.sh
. "$(dirname "$0")/harness/usage.sh"
takes 0 $# "$@"
cd "$(dirname "$0")/.."

venv=build/python
if ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "Python 3.10 or later with venv is needed (Debian: python3-venv)"
    exit 77
fi
[ -x $venv/bin/python ] || python3 -m venv $venv

# What a build that pip started printed at its end, such as which package is missing; otherwise pip's last line.
why_not() {
    local printed
    printed=$(awk '/\[end of output\]/ { inside = 0 }
        inside
        /\[[0-9]+ lines? of output\]/ { inside = 1; print "" }' build/pip.log | sed 's/^      //' | tail -n 40)
    echo "${printed:-$(tail -n 1 build/pip.log)}"
}

# pip draws its progress only on a terminal. Most of what the packages hold is never imported, so Python compiles what is.
install() {
    local pip=($venv/bin/pip install --disable-pip-version-check --no-compile "$@")
    if [ -t 1 ]; then
        "${pip[@]}" 2>build/pip.log
    else
        "${pip[@]}" --quiet >build/pip.log 2>&1
    fi || {
        echo "$* cannot be installed: $(why_not)"
        echo "build/pip.log has all that pip said"
        exit 77
    }
}

# On x86-64 torch's usual build is that for CUDA, also where no GPU is. An index that has its build for CPUs can be named.
install_torch() {
    local version=2.13.0 index=${ODC_TORCH_INDEX-}
    if [ "$(uname -m)" != x86_64 ] || compgen -G "/dev/nvidia*" >/dev/null ||
        $venv/bin/pip list --disable-pip-version-check --format freeze 2>/dev/null | grep -q '^torch=='; then
        index=
    elif [ -n "$index" ]; then
        install --no-deps --index-url "$index" torch==$version # what it needs comes from the usual index
    elif ! grep -qE 'index-url|find-links' <<<"$($venv/bin/pip config list)"; then
        echo "Downloading torch for CUDA, 3 GB, though there is no NVIDIA GPU here: ODC_TORCH_INDEX (docs/building.md) avoids that."
    fi
    install numpy==2.2.6 torch==$version
}

for what in "$@"; do
    case $what in
    checks) install numpy==2.2.6 pytest==8.4.2 mypy==1.18.2 ruff==0.14.5 ;;
    torch) install_torch ;;
    pictures) install matplotlib==3.10.7 ;;
    disassembler) install nvidia-cuda-nvdisasm==13.5.37 nvidia-cuda-nvcc-cu12==12.1.105 ;; # and the assembler of the cubins
    nvml) install nvidia-nvml-dev==13.0.87 ;;
    scipy) install numpy==2.2.6 scipy==1.15.3 ;;
    libraries) # TRL brings 280 MB, most of it pyarrow and pandas
        install transformers==5.23.0 accelerate==1.15.0 tokenizers==0.23.3 trl==1.16.0 peft==0.21.2 torchao==0.18.0 ;;
    torchtitan) # without its requirements: its datasets needs a huggingface_hub that is too old for transformers
        install tyro==1.0.17 einops==0.8.2 tensorboard==2.21.0 torchdata==0.11.0
        $venv/bin/python -c 'import triton' 2>/dev/null || install triton==3.7.1 # 200 MB; torch for CPU comes without
        install --no-deps torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing==0.1.1 ;;
    verl) # after libraries; without Ray and the older transformers and TRL that it asks for, which its engine does not call
        install --no-deps verl==0.9.1 tensordict==0.10.0 pyvers==0.2.3 orjson==3.13.0 cloudpickle==3.1.3 hydra-core==1.3.8 \
            omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 codetiming==1.4.0 ;;
    *) wrong_usage ;;
    esac
done
case $* in
disassembler | nvml | scipy) exit ;;
esac
# With these names, and from there, a compiler cache has the objects of build/release.
export CC=cc CXX=c++
install --force-reinstall --no-deps --config-settings=build-dir=../../build/wheel ./bindings/python
