#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each line of each `sh` block of the pages: its program, script, preset and options exist; what only prints help is run; for the
# rest it names the file that runs it, in which the words that do must be, or says why nothing does. Of `odc ...` within the text the
# verb, the options and the scripts exist. Links to other sites are listed and their form is checked, as tests have no network.
# sessions_test.sh runs the `console` blocks.
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
PYTHON = "bindings/python/tests/"
# Programs that are not of this repository.
OTHERS = {"cmake", "ctest", "pip", "cc", "c++", "torchrun", "accelerate", "sudo", "export", "cd", "cargo", "./example", "build/train",
          "target/debug/examples/train"}
# By page and beginning, what runs its lines: a file, and words of it that do; or why no test does. Of lines that train or measure for
# minutes the file runs smaller ones.
WHO_RUNS = {
    "CONTRIBUTING.md": {
        "bash tests/install.sh test": ("tests/harness/tiers.sh", "bash tests/install.sh test"),
        "cmake --preset debug": "builds for minutes",
        "cmake --build --preset debug": "builds for minutes",
        "tests/run.sh": "runs all tests"},
    "README.md": {
        "tools/demo.sh": "downloads; newcomer.sh runs it, by hand",
        "tests/run.sh": "runs all tests"},
    "bindings/cpp/README.md": {
        "c++ -std=c++17": ("tests/cpp.sh", 'g++ -std=$standard "${warnings[@]}" "$work/example.cc" "$@" -o "$work/example"'),
        "odc run -n 4 ./example": ("tests/cpp.sh", '"$odc" run -n 4 -- "$work/example"'),
        "cmake -S examples": ("tests/cpp.sh", '-S "$source/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$prefix;$torch"'),
        "cmake --build build": ("tests/cpp.sh", 'cmake --build "$work/examples"'),
        "odc run -n 4 build/train": ("tests/cpp.sh", 'trains_as_one "$work/examples/train"')},
    "bindings/python/MIGRATING.md": {
        "torchrun": (PYTHON + "test_migrating.py", 'block("What changes in every loop", "sh")'),
        "accelerate launch": (PYTHON + "test_fsdp2_launched.py", 'block("Accelerate", "sh")'),
        "python3 -m verl.trainer.main_ppo": "needs Ray and GPUs; test_fsdp2_verl.py checks that verl has the settings"},
    "bindings/python/README.md": {
        "pip install -v ./bindings/python": ("tests/venv.sh", "install --force-reinstall --no-deps"),
        "pip install build/dist/libodc-": ("tests/packaging/packages.sh", '"$wheel[trace]"'),
        "pip install build": ("tests/packaging/packages.sh", '"$bin/pip" install --quiet build==1.6.1'),
        "python -m build": ("tests/packaging/packages.sh", '"$bin/python" -m build'),
        "pip install libodc[torch]": "downloads torch; packages.sh adds the other extra",
        "export ODC_LIBRARY=": (PYTHON + "test_abi.py", "ODC_LIBRARY=str(")},
    "bindings/python/examples/grpo/README.md": {
        "odc run -n 2 python grpo.py": (PYTHON + "test_grpo.py", '"run", "-n", str(ranks)'),
        "odc run -n 8 python grpo.py --emulate 3 --rollouts 5 --report": "test_grpo.py runs the next line's like, with --noise",
        "odc run -n 8 python grpo.py --emulate 3 --rollouts 5 --noise": (PYTHON + "test_grpo.py", '"--emulate", "0.1", "--noise"')},
    "bindings/python/examples/train/README.md": {
        "python train.py compute": (PYTHON + "test_train_run.py", 'str(SCRIPT), "compute", "--data"'),
        "odc run -n 2 python train.py compute --slow 1": (PYTHON + "test_train_run.py", '"compute", "--slow", "1"'),
        "odc run -n 2 python train.py compute --device cuda": (PYTHON + "test_train_run.py", 'str(corpus), "--device", "cuda"'),
        "odc run -n 2 python train.py compute": (PYTHON + "test_train_run.py", '"compute", "--data", str(corpus), "--rounds", "3"'),
        "odc run -n 8 python train.py emulated --lengths": (PYTHON + "test_train_run.py", '"emulated", *arguments'),
        "python train.py order": (PYTHON + "test_train_order.py", '"order", "--data"'),
        "odc run -n 3 python train.py exact --reduce bf16 --kill": (PYTHON + "test_train_exact.py", '"--kill", "3"'),
        "odc run -n 2 python train.py exact --reduce bf16 --resume": (PYTHON + "test_train_exact.py", '2, reduce, reduce, "--resume"'),
        "odc run -n 3 python train.py exact": (PYTHON + "test_train_exact.py", '"exact", "--data"')},
    "bindings/rust/README.md": {
        "cd bindings/rust": ("tests/rust.sh", "cd bindings/rust"),
        "export ODC_LIB_DIR=": ("tests/rust.sh", "export ODC_LIB_DIR=$build/lib LD_LIBRARY_PATH=$build/lib"),
        "cargo build --offline --example train": ("tests/rust.sh", "cargo build --locked --examples"),
        "../../build/release/tools/odc run -n 4 -- target/debug/examples/train": ("bindings/rust/odc/tests/example.rs", '"run", "-n"')},
    "docs/building.md": {
        "cmake --preset release": ("tests/harness/tiers.sh", "build release -DODC_TOOLS=ON -DODC_TESTS=ON"),
        "cmake --build --preset release": ("tests/harness/tiers.sh", 'cmake --build --preset "$preset"'),
        "ctest --preset release": ("tests/harness/counts.sh", 'ctest --test-dir "build/$build"')},
    "docs/c.md": {"sudo ldconfig": "changes the machine", "": ("tests/packaging/snippets_test.sh", "block sh c.md")},
    "docs/launching.md": {"": ("tests/packaging/snippets_test.sh", "block sh launching.md")},
    "docs/rendezvous.md": {"": ("tests/packaging/snippets_test.sh", "block sh rendezvous.md")},
    "tests/hardware/README.md": {
        "cmake --preset release": ("tests/harness/tiers.sh", "build release -DODC_TOOLS=ON -DODC_TESTS=ON"),
        "cmake --build --preset release": ("tests/harness/tiers.sh", 'cmake --build --preset "$preset"'),
        "tests/hardware/pack.sh": ("tests/hardware/run_test.sh", "tests/hardware/pack.sh"),
        "tests/hardware/run.sh": "needs a GPU",
        "gpu/tests/hardware/run.sh --multi": "needs several GPUs",
        "gpu/tests/hardware/run.sh": ("tests/hardware/run_test.sh", '"$tree/tests/hardware/run.sh"'),
        "RESULTS=": ("tests/hardware/run_test.sh", '"$tree/tests/hardware/run.sh"'),
        "RUN_SECONDS=": ("tests/hardware/run_test.sh", '"$tree/tests/hardware/run.sh"')},
    "tests/perf/README.md": {
        "tests/perf/run.sh": "measures for a minute; perf_test.sh runs its program for a moment",
        "tests/perf/compare.sh": ("tests/perf/perf_test.sh", '"$compare" "$work/before.json" "$work/after.json"')},
}
failures, not_run, elsewhere, ran, spans, claimed = [], [], [], 0, 0, set()


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


def of_odc(verb, rest):
    """Checks its options; returns the command that odc run starts."""
    own, command = rest, []
    if verb == "run":
        own, command = [], list(rest)
        while command and command[0].startswith("-") and command[0] != "--":
            own.append(command[0])
            command = command[2:]
    options(own, helps([os.environ["ODC"], verb, "--help"]), f"odc {verb}")
    return command[1:] if command[:1] == ["--"] else command


def within_text(page, text):
    """How many are checked."""
    spans = re.findall(r"(?<!`)`(odc \w[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    for span in spans:
        try:
            (_, verb, *rest), *_ = commands(span.replace("\\|", "|"))
            command = of_odc(verb, rest) if verb != "VERB" else []
            for word in command:
                assert not re.search(r"/.*\.(py|sh)$", word) or script(word, page)
        except (AssertionError, ValueError) as error:
            failures.append(f"{page}: `{span}`: {error!r}")
    return len(spans)


def check(words, page):
    """Whether it has been run."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if not words:
        return False
    program, *rest = words
    if program == "odc" or program.endswith("/tools/odc"):
        check(of_odc(rest[0], rest[1:]), page)
        return False
    if program in ("python", "python3") and rest[0] == "-m":  # no script of this repository
        return False
    if program in ("python", "python3"):
        path = script(rest[0], page)
        if "--help" in rest:
            helps([sys.executable, str(path), *rest[1:]])
            return True
        verb = [rest[1]] if path.name == "train.py" else []
        options(rest[1:], helps([sys.executable, str(path), *verb, "--help"]), path.name)
        return False
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
        return False
    assert "/" in program, f"{program} is neither of this repository nor known to this test"
    path = script(program, page)
    assert os.access(path, os.X_OK), f"{path} cannot be executed"
    options(rest, path.read_text(), program)
    return False


def who_runs(line, page):
    """A file's name, or nothing and why nobody does."""
    begin = next((begin for begin in WHO_RUNS.get(str(page), {}) if line.startswith(begin)), None)
    assert begin is not None, "nothing here says who runs it"
    claimed.add((str(page), begin))
    who = WHO_RUNS[str(page)][begin]
    if isinstance(who, str):
        return None, who
    file, text = who
    assert text in Path(file).read_text(), f"{file} does not run it: it has no {text}"
    return file, None


for page in PAGES:
    text = page.read_text()
    spans += within_text(page, text)
    for block in re.findall(r"^```(?:sh|bash|shell)\n(.*?)^```", text, re.S | re.M):
        for line in block.replace("\\\n", "").splitlines():
            for words in commands(line):
                command = shlex.join(words)
                try:
                    if check(words, page):
                        ran += 1
                        continue
                    file, why = who_runs(" ".join(words), page)
                except (AssertionError, IndexError) as error:
                    failures.append(f"{page}: {command}: {error!r}")
                    continue
                if file is None:
                    not_run.append(f"{page}: {command}: not run, {why}")
                else:
                    elsewhere.append(f"{page}: {command}: {file} runs it")
failures += [f"{page} has no line '{begin}'" for page, lines in WHO_RUNS.items() for begin in lines if (page, begin) not in claimed]
links = sorted({link for page in PAGES for link in re.findall(r"\]\((https?:[^)]*)\)", page.read_text())})
failures += [f"{link} is no link" for link in links if not re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[\w./~%#?=&+@-]*)?", link)]
print(*elsewhere, *not_run, *(f"{link}: not followed" for link in links),
      f"{ran} run here, {len(elsewhere)} by other files, {len(not_run)} not run, {spans} within text", sep="\n")
if ran < 1 or len(elsewhere) < 30 or spans < 40 or len(links) < 5:
    failures.append("too few lines, commands within text or links were found")
sys.exit("\n".join(failures) if failures else 0)
PYTHON
