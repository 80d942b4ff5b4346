# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What a file of C or C++ includes, as it is written there. To be sourced.

in_quotes() { sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$1"; }
in_angles() { sed -n 's/^ *# *include *<\([^>]*\)>.*/\1/p' "$1"; }
