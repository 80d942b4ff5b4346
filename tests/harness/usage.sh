# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# To be sourced by a script before it changes its folder. Its usage is the end of the comment at its head, from "# usage:" on;
# --help prints it.
usage=$(sed -n '/^# usage:/,/^[^#]/s/^# \{0,1\}//p' "$0")

wrong_usage() {
    echo "$usage" >&2
    exit 2
}

# takes LEAST MOST "$@": ends with the usage unless there are so many arguments, the first of which is no option.
takes() {
    [ $(($# - 2)) -ge "$1" ] && [ $(($# - 2)) -le "$2" ] && [[ ${3-} != -* ]] || wrong_usage
}

case ${1-} in
-h | --help)
    echo "$usage"
    exit
    ;;
esac
