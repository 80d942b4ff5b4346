# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What a file of C or C++ includes, as it is written there. To be sourced.

in_quotes() { sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$1"; }
in_angles() { sed -n 's/^ *# *include *<\([^>]*\)>.*/\1/p' "$1"; }
# What these two do not read: of a macro or a file of another kind, with a comment or a continued line, include_next.
other_includes() {
    grep -E '^ *(/\*.*\*/)?[[:blank:]]*#([^"]*\<(include|include_next|import)\>|[[:blank:]]*\\$)' "$1" |
        grep -vE '^ *# *include *("[^"]*\.(h|inc)"|<[^>]*>)( *//.*)?$'
}
