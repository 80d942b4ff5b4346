# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Keeps Python's bytecode in build/, whatever the caller's environment says of it: else each process that imports torch takes 3 s
# longer, as pip is told not to compile what it installs. To be sourced in the root of the sources.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$PWD/build/python/bytecode
