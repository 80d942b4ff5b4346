# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of the odc command in bash. Reads `odc --help` and `odc VERB --help` when Tab is pressed: verbs, options, choices
# in braces, files for FILE and directories for DIR.

# Fills the arrays of _odc from the help of "$@".
_odc_read_help() {
    local line part="" head names type name
    while IFS= read -r line; do
        [[ -n $part || $line != *'[--] CMD...'* ]] || starts_command=yes
        case $line in
        Subcommands: | Options: | Positionals:) part=$line ;;
        '') part= ;;
        '  '[!\ ]*)
            # NAMES [TYPE[=DEFAULT]] [Needs: ...], then two spaces and the description.
            head=${line#  }
            head=${head%%  *}
            names=${head%% *}
            type=
            [ "$names" = "$head" ] || type=${head#* } type=${type%% *}
            case $type in
            REQUIRED | *:) type= ;;
            esac
            case $part in
            Subcommands:) verbs+=("$names") ;;
            Positionals:) operand=${type:-$names} ;;
            Options:)
                for name in ${names//,/ }; do
                    options+=("$name")
                    takes[$name]=$type
                done
                ;;
            esac
            ;;
        esac
    done < <("$@" --help 2>/dev/null)
}

# Replies with the values of an option or operand of this type that begin with the given text.
_odc_values() {
    local choices
    case $1 in
    *\{*\}*)
        choices=${1#*\{}
        choices=${choices%%\}*}
        mapfile -t COMPREPLY < <(compgen -W "${choices//,/ }" -- "$2")
        ;;
    FILE*)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$2")
        ;;
    DIR*)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$2")
        ;;
    esac
}

# Completes the command that the ranks run, whose first word is number $1.
_odc_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif [ "$COMP_CWORD" -eq "$1" ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    else
        _odc_values FILE "${COMP_WORDS[COMP_CWORD]}"
    fi
}

# Called with the command's name; the words are in COMP_WORDS, where "=" is a word of its own.
_odc() {
    local odc=${1/#\~\//"$HOME/"} word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} at=2 option="" operands=0
    local verbs=() options=() operand="" starts_command=""
    local -A takes=()
    COMPREPLY=()
    # A word with expansions is not expanded: nothing runs before Enter.
    type -P -- "$odc" >/dev/null || odc=odc
    if [ "$COMP_CWORD" -eq 1 ]; then
        _odc_read_help "$odc"
        [[ $word == -* ]] || options=("${verbs[@]}")
        mapfile -t COMPREPLY < <(compgen -W "${options[*]}" -- "$word")
        return
    fi
    [[ $verb != -* ]] || return
    _odc_read_help "$odc" "$verb"
    # The words before it: options with their values, and operands.
    while [ "$at" -lt "$COMP_CWORD" ]; do
        option=
        case ${COMP_WORDS[at]} in
        --) [ -z "$starts_command" ] || break ;;
        -*)
            if [ -n "${takes[${COMP_WORDS[at]}]-}" ]; then
                option=${COMP_WORDS[at]}
                at=$((at + 1))
                [ "${COMP_WORDS[at]}" != = ] || at=$((at + 1))
                while [[ ${COMP_WORDS[at + 1]-} == [:@]* ]]; do # they separate words, too
                    at=$((at + 2))
                done
            fi
            ;;
        *)
            [ -z "$starts_command" ] || break
            operands=$((operands + 1))
            ;;
        esac
        at=$((at + 1))
    done
    if [ "$at" -gt "$COMP_CWORD" ]; then
        [ "$word" != = ] || word=
        _odc_values "${takes[$option]}" "$word"
    elif [ -n "$starts_command" ] && { [ "$at" -lt "$COMP_CWORD" ] || [[ $word != -* && -n $word ]]; }; then
        [ "${COMP_WORDS[at]}" != -- ] || at=$((at + 1))
        _odc_command "$at"
    else
        [[ $word == -* ]] || [ "$operands" -gt 0 ] || _odc_values "$operand" "$word"
        [ "${#COMPREPLY[@]}" -gt 0 ] || mapfile -t COMPREPLY < <(compgen -W "${options[*]}" -- "$word")
    fi
}

complete -F _odc odc
