# SPDX-License-Identifier: Apache-2.0
"""Prints a line (see declarations.c) for everything that a copy of odc.h declares. Needs a C compiler, cc.

usage: declarations.py HEADER
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def fail(message: str) -> None:
    sys.exit(f"declarations.py: {message}")


def declared_fields(body: str) -> list[tuple[str, str]]:
    """(type, name) of each field, as `const char *a, *b;` declares two."""
    fields = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        first, *others = (part.strip() for part in declaration.split(","))
        base = re.fullmatch(r"((?:const )?\w+) (\**\w+)", first)
        if not base:
            fail(f'the fields "{declaration}" are not understood; write them as `type name, *name;`')
        for one in (base[2], *others):
            stars = one.count("*")
            fields.append((base[1] + " " * bool(stars) + "*" * stars, one.strip("*")))
    return fields


def type_of(argument: str) -> str:
    return re.sub(r"\b\w+$", "", argument.strip()).strip() if " " in argument.strip() else argument.strip()


def check_layout(struct: str, lines: list[str]) -> None:
    """Without implicit padding: older programs do not initialize it, and a later field may be placed in it."""
    end, last = 0, ""
    for line in lines:
        field = re.fullmatch(rf"FIELD\({struct}, (\w+), (.+), (\d+), (\d+)\)", line)
        size = re.fullmatch(rf"SIZE\({struct}, (\d+)\)", line)
        if field and end == 0 and (field[1], field[2]) != ("struct_size", "uint64_t"):
            fail(f"{struct} begins with `{field[2]} {field[1]};`; begin it with `uint64_t struct_size;`")
        begin = int(field[3]) if field else int(size[1]) if size else end
        if begin != end:
            fail(f"{struct} has {begin - end} bytes of padding after `{last}`; put a `reserved` of that size there")
        if field:
            end, last = begin + int(field[4]), field[1]


def declarations(header: Path) -> list[str]:
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
    text = re.sub(r"\s+", " ", re.sub(r"^#.*$", "", text, flags=re.M))
    structs = {name: declared_fields(body) for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text)}
    enums = re.findall(r"typedef enum \w+ \{(.*?)\}", text)
    enumerators = [one.strip() for body in enums for one in body.split(",") if one.strip()]
    for one in enumerators:
        if not re.fullmatch(r"\w+ = -?\d+", one):
            fail(f'the enumerator "{one}" has no value of its own; write `{one} = N`')
    values = [one.split()[0] for one in enumerators]
    callbacks = re.findall(r"typedef (\w+) \(\*(\w+)\)\((.*?)\);", text)
    functions = re.findall(r"ODC_API ([\w *]+?)(\w+)\((.*?)\);", text)
    if not (structs and values and callbacks and functions):
        fail(f"{header} declares no structs, enums, callbacks or functions: is it odc.h?")
    opaque = re.findall(r"typedef struct (\w+) \1;", text)
    understood = len(structs) + len(opaque) + len(enums) + len(callbacks)
    if understood != text.count("typedef ") or len(functions) != text.count("ODC_API "):
        fail(f"{header} has a typedef or an ODC_API function of a form that is not understood")

    questions = [f'printf("VALUE({name}, %d)\\n", (int){name});' for name in values]
    for struct, fields in structs.items():
        for kind, name in fields:
            at = f"offsetof({struct}, {name}), sizeof((({struct} *)0)->{name})"
            questions.append(f'printf("FIELD({struct}, {name}, {kind}, %zu, %zu)\\n", {at});')
        questions.append(f'printf("SIZE({struct}, %zu)\\n", sizeof({struct}));')
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "ask")
        body = "\n".join(questions)
        source = f'#include "{header.resolve()}"\n#include <stdio.h>\nint main(void) {{\n{body}\n}}\n'
        subprocess.run(["cc", "-std=c11", "-x", "c", "-", "-o", program], input=source, text=True, check=True)
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    for struct in structs:
        check_layout(struct, lines)
    lines = [line for line in lines if not line.startswith("SIZE(")]
    for kind, found in (("CALLBACK", callbacks), ("FUNCTION", functions)):
        for result, name, arguments in found:
            types = ", ".join(map(type_of, arguments.split(",")))
            lines.append(f"{kind}({name}, {result.strip()}, {types})")
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        fail("usage: declarations.py HEADER")
    print("\n".join(declarations(Path(sys.argv[1]))))
