#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Completion of the odc command in bash and zsh: verbs, each verb's options as in its --help, valid choices, files, directories,
# and the command behind `odc run`.
set -u

odc=${ODC:?the path of the odc command}
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "${ODC_SOURCE_DIR:?the folder of the sources}/tests/harness/shell_checks.sh"
scripts=$ODC_SOURCE_DIR/tools/completion
export LC_ALL=C.UTF-8
PATH=$(dirname "$odc"):$PATH

mkdir "$work/here" "$work/here/lots" "$work/here/bin"
touch "$work/here/lengths.txt" "$work/here/two words"
printf '#!/bin/sh\n' >"$work/here/bin/unlike-any-other"
chmod +x "$work/here/bin/unlike-any-other"
PATH=$PATH:$work/here/bin
cd "$work/here" || exit 1
# Another odc, which completion must ask when it is given by its path.
export HOME=$work
mkdir "$work/bin"
printf '#!/bin/sh\necho "Subcommands:\n  theirs  What only it has."\n' >"$work/bin/odc"
chmod +x "$work/bin/odc"

# The expected completions, sorted: LINE|WORD WORD ... completes the line's last word.
cases() {
    local verb options
    expect 0 "$odc" --help
    verbs=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p' "$work/out")
    [ "$(wc -w <<<"$verbs")" -ge 6 ] || fail "odc --help names only these verbs: $verbs"
    printf 'odc |%s\n' "$(sort <<<"$verbs" | paste -sd' ')"
    printf 'odc re|replay\nodc nowhere |\nodc nowhere --|\nodc -|--help --version -h\n'
    for verb in $verbs; do
        expect 0 "$odc" "$verb" --help
        options=$(sed -nE 's/^  (-[^ ]*).*/\1/p' "$work/out" | tr , '\n' | sort)
        printf 'odc %s -|%s\n' "$verb" "$(paste -sd' ' <<<"$options")"
        printf 'odc %s --|%s\n' "$verb" "$(grep -- '^--' <<<"$options" | paste -sd' ')"
    done
    cat <<'CASES'
~/bin/odc |theirs
$HOME/bin/odc re|replay
$(pwd>ran)/odc re|replay
odc $(touch ran) --|
odc `touch ran` --|
odc bench |claim gather scatter-add sync
odc bench s|scatter-add sync
odc bench gather --type |bf16 f16 f32 f64
odc bench --type=b|bf16
odc bench --type=|bf16 f16 f32 f64
odc bench --memory cuda --active o|one
odc bench gather --bytes |
odc plan --policy |lb-micro lb-mini local-sort sorted-rows
odc plan --cost |1.5b 7b linear
odc plan --ranks 4 le|lengths.txt
odc replay --model |1.5b 14b 32b 7b
odc replay --lengths le|lengths.txt
odc replay --corpus l|lots
odc topo --svg=le|lengths.txt
odc run --via |
odc run -n 2 --h|--help --hosts
odc run -n 2 unlike-any|unlike-any-other
odc run -n 2 -- unlike-any|unlike-any-other
odc run -n 2 -- unlike-any-other le|lengths.txt
odc run -n 2 unlike-any-other --type le|lengths.txt
odc run --hosts=a:1,b -n 2 unlike-any|unlike-any-other
CASES
}
cases >"$work/cases"
same "$(grep -c 'FAILED' "$work/cases")" 0

# compare SHELL: compares its completions, in $work/SHELL, with the cases.
compare() {
    diff "$work/cases" "$work/$1" >"$work/differs" || fail "$1's completions (>) differ from the expected ones (<): $(cat "$work/differs")"
}

# ---- bash, with and without bash-completion ----
cat >"$work/complete.bash" <<'BASH'
. "$1/odc.bash"
# As readline splits words: "=" and ":" separate them.
while IFS='|' read -r line _; do
    read -ra COMP_WORDS <<<"$(sed 's/[=:]/ & /g' <<<"$line")"
    [[ $line != *[\ =] ]] || COMP_WORDS+=("")
    [[ $line != *= ]] || unset 'COMP_WORDS[-1]'
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    function_of_odc=$(complete -p odc | sed 's/.*-F \([^ ]*\).*/\1/')
    "$function_of_odc" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s|%s\n' "$line" "$(printf '%s\n' "${COMPREPLY[@]}" | sort -u | paste -sd' ')"
done
BASH
timeout 100 bash --norc "$work/complete.bash" "$scripts" <"$work/cases" >"$work/bash" 2>"$work/err"
same "$(cat "$work/err")" ""
compare bash
# The helper of bash-completion gets the command behind `odc run`.
same "$(bash --norc -c '. "$1/odc.bash"; _command_offset() { echo "from $1"; }
    COMP_WORDS=(odc run -n 2 -- make al) COMP_CWORD=6; _odc odc' - "$scripts")" "from 5"
# A name with a space is one reply; without the odc command there is none and no error output.
same "$(bash --norc -c '. "$1/odc.bash"; COMP_WORDS=(odc plan two) COMP_CWORD=2; _odc odc
    echo "${#COMPREPLY[@]} $COMPREPLY"' - "$scripts")" "1 two words"
same "$(bash --norc -c '. "$1/odc.bash"; COMP_WORDS=(odc bench "") COMP_CWORD=2 PATH=; _odc odc
    echo "${#COMPREPLY[@]}"' - "$scripts" 2>&1)" 0

# The verb accepts each offered choice.
for line in plan:--policy plan:--cost replay:--model bench:--type bench:--transport bench:--memory bench:--active bench:--peer; do
    verb=${line%:*} option=${line#*:}
    for choice in $(bash --norc -c '. "$1/odc.bash"; COMP_WORDS=(odc "$2" "$3" "") COMP_CWORD=3; _odc odc
        echo "${COMPREPLY[@]}"' - "$scripts" "$verb" "$option"); do
        # The choice is accepted, and the next error follows: no such operation, no lengths.
        case $verb in
        plan) expect 0 sh -c 'echo 7 | "$@"' - "$odc" plan --ranks 1 "$option" "$choice" - ;;
        replay) expect 2 "$odc" replay "$option" "$choice" --lengths - && contains "$err" "cannot share standard input or a pipe" ;;
        bench) expect 2 "$odc" bench gather "$option" "$choice" --pairs none && contains "$err" "--pairs" ;;
        esac
    done
done

# ---- zsh, in a terminal ----
if ! command -v zsh >/dev/null || ! zsh -fc 'zmodload zsh/zpty' 2>/dev/null; then
    [ "$failures" -eq 0 ] || exit 1
    echo "zsh with zsh/zpty was not found; bash completes as it should"
    exit 77
fi
cat >"$work/inside.zsh" <<'ZSH'
autoload -Uz compinit
compinit -D -u
# Records the offered completions, but not queries of compadd (-O, -A, -D).
compadd() {
    local -a offered
    if [[ "${@[1,(i)(-|--)]}" != *-[OAD]* ]]; then
        builtin compadd -O offered "$@"
        print -rl -- $offered >>$work/offered
    fi
    builtin compadd "$@"
}
note() {
    _main_complete
    compstate[insert]= compstate[list]=
    : >$work/noted
}
zle -C note complete-word note
bindkey '^I' note
: >$work/noted
ZSH
cat >"$work/complete.zsh" <<'ZSH'
zmodload zsh/zpty
noted() {
    local tries
    for tries in {1..1200}; do
        [[ ! -e $work/noted ]] || { rm $work/noted; return }
        sleep 0.05
    done
    print -u 2 "zsh did not get to: $1"
    exit 1
}
zpty -b shell "env -i HOME=$work PATH=$PATH TERM=dumb LC_ALL=C.UTF-8 zsh -f -i"
zpty -w shell "fpath=($1 \$fpath) work=$work; source $work/inside.zsh"
noted "its start"
while IFS='|' read -r line rest; do
    : >$work/offered
    zpty -w -n shell $'\C-u'$line$'\t'
    noted $line
    print -r -- "$line|$(sort -u $work/offered | sed '/^ *$/d' | paste -sd' ' -)"
done
zpty -d shell
ZSH
timeout 250 env work="$work" zsh -f "$work/complete.zsh" "$scripts" <"$work/cases" >"$work/zsh" 2>"$work/err" ||
    fail "zsh: $(cat "$work/err")"
compare zsh
[ ! -e ran ] || fail "what is typed was run before Enter"

[ "$failures" -eq 0 ] || exit 1
echo "$(wc -l <"$work/cases") lines are completed in bash and zsh"
