#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example of docs/c.md compiles as C99 without a warning and runs as four ranks; the tables of odc replay and odc bench in
# docs/command.md are what they print, except the figures; the links of README.md and docs/ are valid, the library, the command and the Python
# package have the sentences of docs/troubleshooting.md, and the patch of lib/transport/README.md applies.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}" "${ODC:?the odc command}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk '/^```c$/ {inside = 1; next} /^```$/ {if (inside) exit} inside' "$ODC_SOURCE_DIR/docs/c.md" >"$work/example.c"
grep -q 'int main(' "$work/example.c" || { echo "the first \`\`\`c block of docs/c.md is not a program" >&2; exit 1; }
"${CC:-cc}" -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$ODC_SOURCE_DIR/include" "$work/example.c" -o "$work/example" \
    -L"$ODC_BUILD_DIR/lib" -lodc -Wl,-rpath,"$ODC_BUILD_DIR/lib" || exit 1
timeout 60 "$ODC" run -n 4 -- "$work/example" || { echo "the example ended with status $?" >&2; exit 1; }

# The figures and the columns' widths do not matter; the verdict, and with it the speedups, and whether pairs were repeated, depend
# on what else runs.
form() { sed -E '/^verdict: /d; /^other programs /d; s/[0-9.]+x/-/g; s/[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?/N/g; s/ +/ /g' "$1"; }

sed -n '/^emulated device/,/^```$/p' "$ODC_SOURCE_DIR/docs/command.md" | sed '$d' >"$work/shown"
timeout 60 "$ODC" replay --ranks 2 --minibatch 2 \
    --minibatches 1 --seconds 0.5 >"$work/printed" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
diff <(form "$work/shown") <(form "$work/printed") || { echo "docs/command.md does not show what odc replay prints" >&2; exit 1; }

# The loop and the processors are the machine's; whether there are ratios, and how many lines the verdict takes, depends on it.
bench_form() {
    form "$1" | sed -E '/^libodc N\.N/d; /^ bar N: /d; s/ \((memcpy|non-temporal copy)\)$//; s/N \(N to N\)$/-/'
}
sed -n '/^odc bench gather: /,/^```$/p' "$ODC_SOURCE_DIR/docs/command.md" | sed '$d' >"$work/shown"
timeout 60 "$ODC" bench gather --bytes 64KiB --pairs 6 --sample-ms 1 >"$work/printed" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
diff <(bench_form "$work/shown") <(bench_form "$work/printed") || { echo "docs/command.md does not show what odc bench prints" >&2; exit 1; }

# The commands that a newcomer is timed with, and the picture, which carries its run's result.
bash "$ODC_SOURCE_DIR/tests/packaging/newcomer.sh" commands || exit 1
grep -q 'The whole run: ' "$ODC_SOURCE_DIR/docs/schedules.svg" ||
    { echo "docs/schedules.svg is not what docs/schedules.sh draws" >&2; exit 1; }

# For a link to a heading: the file must have a heading with the anchor's words.
cd "$ODC_SOURCE_DIR" || exit 1
broken=0
for page in $(find . -name '*.md' -not -path './build*' -not -path './report/*' -not -path '*/target/*' -not -path '*/.*'); do
    while read -r link; do
        case $link in http*) continue ;; esac
        file=${link%%#*}
        target=$(dirname "$page")/$file
        [ -n "$file" ] || target=$page
        if [ ! -e "$target" ]; then
            echo "$page links to $link, which is not there" >&2
            broken=1
        elif [[ $link == *#* ]] && ! sed -n 's/^##* //p' "$target" | tr '[:upper:] ' '[:lower:]-' | tr -cd 'a-z0-9_\n-' |
            grep -qxF "${link#*#}"; then
            echo "$page links to $link, and $target has no such heading" >&2
            broken=1
        fi
    done < <(grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//')
done

# A sentence may be several literals in the sources.
literals() { tr '\n' ' ' | sed -E 's/" +f?"//g'; }
cat lib/*/*.{cc,h} lib/*/*/*.{cc,h} | literals >"$work/of_the_library"
{ cat tools/*/*.cc; find bindings/python/libodc -name '*.py' -exec cat {} +; } | literals >"$work/of_python"
said=of_the_library
while read -r sentence; do
    case $sentence in
    '## Python') said=of_python ;;
    '## '*) said=of_the_library ;;
    'environment variable RANK expected, but not set') ;; # torch's
    *) grep -qF -- "$sentence" "$work/$said" || {
        echo "docs/troubleshooting.md has \"$sentence\", and nothing ${said//_/ } says that" >&2
        broken=1
    } ;;
    esac
done < <(sed -n -e '/^## /p' -e 's/^| `\([^`]*\)` | .*/\1/p' docs/troubleshooting.md)
[ "$(grep -c '^| `' docs/troubleshooting.md)" -ge 20 ] || { echo "docs/troubleshooting.md has too few sentences" >&2; broken=1; }

# toy_transport_test.sh builds what this page says.
awk '/^```diff$/ {inside = 1; next} /^```$/ {inside = 0} inside' lib/transport/README.md >"$work/page.patch"
if command -v patch >/dev/null; then
    patch --dry-run --batch --fuzz=0 -p1 -i "$work/page.patch" || { echo "the patch of lib/transport/README.md is out of date" >&2; broken=1; }
fi
exit "$broken"
