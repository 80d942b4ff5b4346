#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The man pages. Section 1: each verb's page has the options that its --help prints and no other, and odc.1 the settings.
# Section 3, as installed: each function of odc.h is found by its name, each field and value is there, the formatters
# that are here have nothing to object, and what changes in the header changes in its page.
set -u

odc=${ODC:?the path of the odc command}
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}"
# shellcheck source-path=SCRIPTDIR source=../harness/shell_checks.sh
. "$ODC_SOURCE_DIR/tests/harness/shell_checks.sh"
header=$ODC_SOURCE_DIR/include/odc/odc.h
write_pages=$ODC_SOURCE_DIR/packaging/man/pages.py
export LC_ALL=C.UTF-8

# What is installed of the pages, as `cmake --install` of the whole does it.
prefix="$work/a prefix"
expect 0 cmake -DCMAKE_INSTALL_PREFIX="$prefix" -P "$ODC_BUILD_DIR/packaging/man/cmake_install.cmake"
man=$prefix/share/man
text() { sed 's/\\-/-/g; s/\\[%&]//g; s/\\f[BIPR]//g' "$@"; }

# ---- section 1 ----
expect 0 "$odc" --help
verbs=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p' "$work/out")
[ "$(wc -w <<<"$verbs")" -ge 6 ] || fail "odc --help names only these verbs: $verbs"
version=$("$odc" --version)
for verb in $verbs; do
    page=$man/man1/odc-$verb.1
    expect 0 "$odc" "$verb" --help
    # What the help prints of options, and what the page describes: the tags are what follows .TP.
    same "$(text "$page" | grep -A 1 '^\.TP' | grep -oE -- '--[a-z-]+' | sort -u)" \
        "$(sed -nE 's/^  (-[^ ]*).*/\1/p' "$work/out" | tr , '\n' | grep -- '^--' | sort -u)"
    for section in NAME SYNOPSIS DESCRIPTION OPTIONS 'EXIT STATUS' EXAMPLES 'SEE ALSO'; do
        grep -qx "\.SH $section" "$page" || fail "odc-$verb.1 has no section $section"
    done
    grep -qF "\"libodc ${version#odc }\"" "$page" || fail "odc-$verb.1 does not name version ${version#odc }"
    grep -qF "odc\\-$verb (1)" "$man/man1/odc.1" || fail "odc.1 does not name odc-$verb(1)"
done
same "$(cd "$man/man1" && ls)" "$( (echo odc.1; sed 's/.*/odc-&.1/' <<<"$verbs") | sort)"
# The settings: of each its name and its help.
expect 0 "$odc" info --settings
same "$(text "$man/man1/odc.1" | sed -n '/^\.SH ENV/,/^\.SH FILES/{/^\.B ODC_/N; s/^\.B \(.*\)\n/\1 /p}')" \
    "$(sed -nE 's/^  (ODC_[A-Z_]+) .* (default|environment) +/\1 /p' "$work/out")"

# ---- section 3 ----
if ! command -v python3 >/dev/null; then
    [ "$failures" -eq 0 ] || exit 1
    echo "python3 was not found, which writes the pages of odc.h's functions"
    exit 77
fi
functions=$(functions_of "$header")
[ "$(wc -w <<<"$functions")" -ge 30 ] || fail "only these functions were found in odc.h: $functions"
same "$(cd "$man/man3" && ls)" "$( (echo libodc.3; sed 's/$/.3/' <<<"$functions") | sort)"
for function in $functions; do
    page=$man/man3/$function.3
    text "$page" | grep -A 1 '^\.SH NAME' | grep -qE "(^|, )$function(,.*)? - ." || fail "the NAME of $function.3 lacks it"
    text "$page" | grep -qE "[ *]$function\(.*[,;]\$" || fail "the SYNOPSIS of $function.3 lacks it"
    if sed -n "/^ODC_API odc_status $function(/p" "$header" | grep -q . && ! grep -q '^\.SH RETURN VALUE' "$page"; then
        fail "$function.3 does not tell what it returns"
    fi
done
text "$man"/man3/*.3 >"$work/all"
members=$(awk '/^typedef struct .*\{/ { inside = 1; next } /^}/ { inside = 0 }
    inside { sub(/\/\*.*/, ""); sub(/;.*/, ""); n = split($0, part, ","); for (i = 1; i <= n; i++) {
        sub(/.*[ *]/, "", part[i]); if (part[i] != "") print part[i] } }' "$header" | sort -u)
values=$(grep -oE '\bODC_[A-Z0-9_]+ = -?[0-9]+' "$header" | sed 's/ .*//')
[ "$(wc -w <<<"$members $values")" -ge 80 ] || fail "only these fields and values were found in odc.h: $members $values"
for name in $members $values; do
    grep -qw -- "$name" "$work/all" || fail "no page has $name"
done
for status in $(sed -nE 's/^ +(ODC_(OK|ERROR_[A-Z_]+)) = .*/\1/p' "$header"); do
    text "$man/man3/libodc.3" | grep -qE "^$status \(-?[0-9]+\)$" || fail "libodc.3 does not list $status"
done
# Each comment is on a page whole: its words in their order, whatever they are set in.
words() { tr -c 'A-Za-z0-9' ' ' | tr -s ' '; }
text "$man"/man3/*.3 | sed 's/([13])//g; s/()//g; s/\.[A-Z][A-Z]*\>//g' | words >"$work/all_words"
while IFS= read -r comment; do
    comment=$(sed 's/()//g; s/.*, here and below: //; s/^Threads: //' <<<"$comment" | words)
    grep -qiF -- "${comment% }" "$work/all_words" || fail "no page says: $comment"
done < <(tr '\n' ' ' <"$header" | grep -oE '/\*([^*]|\*[^/])*\*/' | sed '1,2d; s/ \* / /g; s|^/\* *||; s| *\*/$||' |
    grep -v '^----')

# ---- the formatters ----
rendered=
for page in "$man"/man1/*.1 "$man"/man3/*.3; do
    name=$(basename "$page")
    if command -v mandoc >/dev/null; then
        rendered=mandoc
        # The pages have no date, so that they are the same whenever they are built.
        warnings=$(mandoc -T lint -W warning "$page" | grep -v 'missing date')
        [ -z "$warnings" ] || fail "mandoc: $warnings"
        mandoc -T utf8 -O width=80 "$page" | sed 's/.\x08//g' >"$work/page"
        long=$(grep -E '^.{81,}' "$work/page")
        [ -z "$long" ] || fail "$name has lines of more than 80 columns: $long"
        grep -q '\\[f%(]' "$work/page" && fail "$name shows the formatter's own words: $(grep '\\[f%(]' "$work/page")"
    fi
    if command -v groff >/dev/null; then
        warnings=$(groff -man -ww -z -Tutf8 "$page" 2>&1)
        [ -z "$warnings" ] || fail "groff: $warnings"
    fi
    ! command -v lexgrog >/dev/null || lexgrog "$page" >"$work/out" 2>&1 || fail "no whatis entry: $(cat "$work/out")"
    if command -v man >/dev/null && man --version >"$work/out" 2>&1 && grep -q '^man [0-9]' "$work/out"; then
        rendered="man"
        MANWIDTH=80 MANPAGER=cat man --no-hyphenation -M "$man" "${name##*.}" "${name%.*}" >"$work/page" 2>"$work/err" ||
            fail "man ${name##*.} ${name%.*}: $(cat "$work/err")"
        grep -qw -- "$(sed 's/\..$//; s/^odc-/odc /; s/^odc$/odc VERB/' <<<"$name")" "$work/page" ||
            [ "$name" = libodc.3 ] || fail "man ${name##*.} ${name%.*} does not show it: $(head -n 20 "$work/page")"
    fi
done

# ---- what the header says, the pages say ----
mkdir "$work/include"
copy=$work/include/odc.h
cp "$header" "$copy"
expect 0 python3 "$write_pages" "$copy" "$work/copied"
diff -r "$man/man3" "$work/copied" >"$work/out" || fail "other pages from another folder: $(cat "$work/out")"
sed -i 's|/\* Leaves the job, without waiting for calls of others\.|/* Leaves the job and waits for the moon.|' "$copy"
expect 0 python3 "$write_pages" "$copy" "$work/changed"
same "$(diff -rq "$work/copied" "$work/changed" | sed 's|.*/\(.*\) differ|\1|' | paste -sd' ')" "libodc.3 odc_shutdown.3"
contains "$(cat "$work/changed/odc_shutdown.3")" "Leaves the job and waits for the moon."
sed -i '/^\/\* Leaves the job and waits/d' "$copy"
line=$(grep -n 'odc_shutdown(' "$copy" | sed 's/:.*//')
sed -i "$((line - 1))a\\
" "$copy"
expect 1 python3 "$write_pages" "$copy" "$work/none"
same "$err" "pages.py: $copy:$((line + 1)): odc_shutdown has no comment, so nothing can be said of it in a man page"
[ ! -e "$work/none" ] || fail "a header without a comment left pages behind"
expect 1 python3 "$write_pages" "$work/no.h" "$work/none"
contains "$err" "$work/no.h"

# ---- without the odc command, and without Python ----
configure() { expect 0 cmake -G Ninja -S "$ODC_SOURCE_DIR" -B "$work/build" -DODC_TOOLS=OFF -DODC_TESTS=OFF "$@"; }
left_out="Python 3.8 or later was not found: the man pages of odc.h's functions are left out"
configure -DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON
contains "$out" "$left_out"
configure -DCMAKE_DISABLE_FIND_PACKAGE_Python3=OFF
case $out in *"$left_out"*) fail "python3 is here, but: $out" ;; esac
expect 0 cmake --build "$work/build" --target odc_pages
expect 0 cmake -DCMAKE_INSTALL_PREFIX="$work/library" -P "$work/build/packaging/man/cmake_install.cmake"
diff -r "$man/man3" "$work/library/share/man/man3" >"$work/out" || fail "without the command: $(cat "$work/out")"
[ ! -e "$work/library/share/man/man1" ] || fail "pages of a command that is not built were installed"

[ "$failures" -eq 0 ] || exit 1
if [ -z "$rendered" ]; then
    echo "neither mandoc nor man was found to show the pages with"
    exit 77
fi
echo "$(find "$man" -name '*.[13]' | wc -l) pages, shown by $rendered"
