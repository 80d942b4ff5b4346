#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each line of each `sh` block of the pages: its program, script, preset and options exist; what only prints help is run, the
# rest is listed with the reason (snippets_test.sh runs those of the pages about launching). Links to other sites are listed and
# their form is checked, as tests have no network.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC:?the odc command}"
cd "$ODC_SOURCE_DIR" || exit 1
python3 - <<'PYTHON'
import json, os, re, shlex, subprocess, sys
from pathlib import Path

PAGES = sorted(
    {Path(name) for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")}
    | {page for glob in ("docs/*.md", "bindings/*/*.md", "bindings/*/examples/**/*.md", "tests/*/README.md",
                         "packaging/*.md", "tools/README.md", "lib/**/README.md") for page in Path().glob(glob)})
# Programs that are not of this repository, and why their lines are not run here.
OTHERS = {"cmake": "builds or installs", "ctest": "runs all tests", "pip": "installs; packages.sh runs it", "cc": "snippets_test.sh runs it",
          "c++": "tests/cpp.sh builds the same", "torchrun": "test_minimal_fsdp2.py runs it", "accelerate": "test_fsdp2_launched.py runs it", "sudo": "installs; snippets_test.sh runs it",
          "export": "sets variables", "cd": "changes the folder", "cargo": "tests/rust.sh runs it",
          "target/debug/examples/train": "tests/rust.sh runs it", "build/train": "tests/cpp.sh runs it", "./example": "snippets_test.sh runs it"}
failures, not_run, ran = [], [], 0


def helps(command):
    # ranks of a job would not print it
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ODC_R")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 0, f"{command}: {ended.stderr}"
    return ended.stdout


def options(words, known, what):
    for word in words:
        if word.startswith("--") and word != "--" and not re.search(rf"{word.partition('=')[0]}(?![\w-])", known):
            raise AssertionError(f"{what} has no {word}")


def script(name, page):
    for folder in (Path(), page.parent):
        found = folder / name.removeprefix("gpu/")  # what pack.sh packs is unpacked as gpu/
        if found.exists():
            return found
    raise AssertionError(f"there is no {name}")


def commands(line):
    """The words of each; what a command is to print stands as X."""
    lexer = shlex.shlex(re.sub(r"\$\((?:[^()]|\([^()]*\))*\)", "X", line), posix=True, punctuation_chars="&;|")
    lexer.whitespace_split = True
    parts = [[]]
    for word in lexer:
        parts = [*parts, []] if set(word) <= set("&;|") else [*parts[:-1], [*parts[-1], word]]
    return [part for part in parts if part]


def check(words, page):
    """Returns why it is not run, or nothing where it has been."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if not words:
        return "sets a variable"
    program, *rest = words
    if program == "odc" or program.endswith("/tools/odc"):
        verb, *rest = rest
        own = rest
        if verb == "run":
            known = helps([os.environ["ODC"], "run", "--help"])
            own, rest = [], list(rest)
            while rest and rest[0].startswith("-") and rest[0] != "--":
                own += rest[:2]
                rest = rest[2:]
            options(own[::2], known, "odc run")
            return check(rest[1:] if rest[:1] == ["--"] else rest, page) or "needs ranks"
        options(own, helps([os.environ["ODC"], verb, "--help"]), f"odc {verb}")
        return "snippets_test.sh runs it"
    if program in ("python", "python3"):
        path = script(rest[0], page)
        if "--help" in rest:
            helps([sys.executable, str(path), *rest[1:]])
            return None
        verb = [rest[1]] if path.name == "train.py" else []
        options(rest[1:], helps([sys.executable, str(path), *verb, "--help"]), path.name)
        return "trains for minutes; the package's tests run it smaller"
    if program == "bash":
        program, *rest = rest
    if program in ("cmake", "ctest"):
        presets = {one["name"] for kind in ("configurePresets", "buildPresets", "testPresets")
                   for one in json.loads(Path("CMakePresets.json").read_text())[kind]}
        for name in (rest[number + 1] for number, word in enumerate(rest) if word == "--preset"):
            assert name in presets, f"there is no preset {name}"
    if program == "pip":
        for word in rest:
            assert not word.startswith("./") or script(word.partition("[")[0], page).is_dir(), f"{word} is no package"
    if program in OTHERS:
        return OTHERS[program]
    assert "/" in program, f"{program} is neither of this repository nor known to this test"
    path = script(program, page)
    assert os.access(path, os.X_OK), f"{path} cannot be executed"
    options(rest, path.read_text(), program)
    return "builds, installs or runs tests"


for page in PAGES:
    text = page.read_text()
    for block in re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.S | re.M):
        for line in block.splitlines():
            for words in commands(line):
                try:
                    why = check(words, page)
                except (AssertionError, IndexError) as error:
                    failures.append(f"{page}: {shlex.join(words)}: {error!r}")
                    continue
                if why:
                    not_run.append(f"{page}: {shlex.join(words)}: not run, {why}")
                ran += not why
links = sorted({link for page in PAGES for link in re.findall(r"\]\((https?:[^)]*)\)", page.read_text())})
failures += [f"{link} is no link" for link in links if not re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[\w./~%#?=&+@-]*)?", link)]
print(*not_run, *(f"{link}: not followed" for link in links), f"{ran} run, {len(not_run)} not run", sep="\n")
if ran < 1 or len(not_run) < 30 or len(links) < 5:
    failures.append("too few lines or links were found")
sys.exit("\n".join(failures) if failures else 0)
PYTHON
