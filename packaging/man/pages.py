#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pages.py HEADER FOLDER: writes the man pages of odc.h's functions (section 3) from its comments, into a new folder.

A block comment documents what follows it up to the next comment or blank line, a comment behind a declaration that
declaration; a section's heading documents what stands right below it without either. All functions of one comment
share a page, which the first one names.
"""

import os
import re
import sys
import textwrap

WIDTH = 72  # of what is not filled, so that it fits 80 columns with a page's margin

SHARED = re.compile(r"`(\w+)`, here and below: (.*)", re.S)  # of a parameter that later functions have, too


class Wrong(Exception):
    """What is wrong in the header, and where."""


class Comment:
    def __init__(self, text, section, heading=False):
        self.text = text
        self.section = section
        self.heading = heading
        self.used = False


class Type:
    def __init__(self, name, kind, code, comment):
        self.name = name
        self.kind = kind  # opaque, function, struct, enum
        self.code = code
        self.comment = comment  # a Comment or None
        self.members = []  # ([names], declaration, comment) or (None, None, what is said of those that follow)
        self.page = None  # the first that shows it


class Page:
    def __init__(self, comment):
        self.comment = comment
        self.section = comment.section
        self.functions = []  # (name, prototype)
        self.types = []

    @property
    def name(self):
        return self.functions[0][0]

    @property
    def names(self):
        return [name for name, _ in self.functions]

    def returns_status(self):
        return all(prototype.startswith("odc_status ") for _, prototype in self.functions)


def plain(comment):
    """The words of a /* comment */, in paragraphs, which a blank line divides or a line that begins with "Word: "."""
    lines = [re.sub(r"^ ?\* ?", "", line) for line in comment[2:-2].split("\n")]
    paragraphs = re.split(r"\n\s*\n|\n(?=[A-Z][a-z]+: )", "\n".join(lines).strip("\n"))
    return [" ".join(paragraph.split()) if not paragraph.startswith("    ") else paragraph for paragraph in paragraphs]


def end_of_declaration(text, start):
    depth = 0
    for match in re.compile(r"/\*.*?\*/|[{};]", re.S).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if match.group() == ";" and depth == 0:
            return match.end()
    return len(text)


def members_of(body, kind):
    end = ";" if kind == "struct" else ","
    pattern = re.compile(rf"/\*(?P<above>.*?)\*/|(?P<code>\w[^/{end}]*){end}?(?P<behind>[ \t]*/\*.*?\*/)?", re.S)
    members = []
    for match in pattern.finditer(body):
        code = " ".join((match.group("code") or "").split())
        if match.group("above") is not None:
            members.append((None, None, plain(match.group())[0]))
        elif code:
            names = re.findall(r"(\w+)(?: = -?\d+)?(?:,|$)", code)
            behind = match.group("behind")
            members.append((names, code, plain(behind.strip())[0] if behind else None))
    return members


class Header:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        self.path = path
        version = re.findall(r"^#define ODC_VERSION_\w+ (\d+)$", self.text, re.M)
        if len(version) != 3:
            raise Wrong(f"{path}: ODC_VERSION_MAJOR, _MINOR and _PATCH were not found")
        self.version = ".".join(version)
        blocks = re.findall(r"/\*.*?\*/", self.text, re.S)
        self.overview = plain(blocks[1]) if len(blocks) > 1 else []
        if len(self.overview) < 2:
            raise Wrong(f"{path}: the overview was not found: the comment that follows the licence's")
        self.pages = []
        self.types = {}
        self.read(self.text.index(blocks[1]) + len(blocks[1]))
        for page in self.pages:
            page.types = self.types_of(page)
        for kind in self.types.values():
            kind.page = next((page for page in self.pages if kind in page.types), None)
        if "odc_status" not in self.types or not self.pages:
            raise Wrong(f"{path}: it declares no odc_status, or no function after ODC_API")

    def read(self, at):
        section = ""
        comment = None  # the block comment or heading that what comes next belongs to
        item = re.compile(
            r"(?P<blank>\n[ \t]*\n)|(?P<directive>#[^\n]*)|(?P<comment>/\*.*?\*/)|"
            r'(?P<linkage>extern "C" {)|(?P<code>\w)',
            re.S,
        )
        same_line = re.compile(r"[ \t]*(/\*.*?\*/)?", re.S)
        while match := item.search(self.text, at):
            at = match.end()
            if match.group("blank"):
                comment = None
                at -= 1
            elif match.group("comment"):
                words = plain(match.group())[0]
                heading = re.fullmatch(r"-+ (.*?) -+", words)
                section = heading.group(1) if heading else section
                comment = Comment(heading.group(1) if heading else words, section, bool(heading))
            elif match.group("code"):
                at = end_of_declaration(self.text, match.start())
                code = self.text[match.start() : at]
                behind = same_line.match(self.text, at)
                own = None
                if behind.group(1):
                    own = Comment(plain(behind.group(1))[0], section)
                    at = behind.end()
                self.declare(code, own, comment, section, self.text.count("\n", 0, match.start()) + 1)

    def declare(self, code, own, comment, section, line):
        if code.startswith("ODC_API"):
            prototype = " ".join(code[len("ODC_API") : -1].split())
            name = re.search(r"(odc_\w+)\(", prototype).group(1)
            if not own and not comment:
                raise Wrong(f"{self.path}:{line}: {name} has no comment, so nothing can be said of it in a man page")
            page = next((page for page in self.pages if page.comment is comment and not own), None)
            if not page:
                page = Page(own or comment)
                self.pages.append(page)
            page.functions.append((name, prototype))
            if comment:
                comment.used = True
            return
        shape = re.fullmatch(r"typedef (struct|enum) (\w+) (?:\{(.*)\} )?\w+;", code, re.S)
        function = re.fullmatch(r"typedef .*\(\*(\w+)\).*;", code, re.S)
        if not shape and not function:
            first = code.split("\n")[0]
            raise Wrong(f"{self.path}:{line}: this is neither a function nor a type of a known form: {first}")
        fresh = comment if comment and not comment.used and not comment.heading else None
        if fresh:
            fresh.used = True
        if function:
            kind = Type(function.group(1), "function", code, own or fresh)
        else:
            kind = Type(shape.group(2), shape.group(1) if shape.group(3) else "opaque", code, own or fresh)
            kind.members = members_of(shape.group(3) or "", kind.kind)
        self.types[kind.name] = kind

    def types_of(self, page):
        """What the page's prototypes name and, of enumerations and callbacks, what these and the comments name."""
        found = []

        def look(text, kinds):
            for name in re.findall(r"\bodc_\w+", text):
                kind = self.types.get(name)
                if kind and kind not in found and name != "odc_status" and kind.kind in kinds:
                    found.append(kind)
                    words = [kind.code] + ([kind.comment.text] if kind.comment else [])
                    look(" ".join(words), ("enum", "function"))

        for _, prototype in page.functions:
            look(prototype, ("struct", "enum", "function"))
        look(page.comment.text, ("enum", "function"))
        order = list(self.types.values())
        return sorted(found, key=order.index)

    def parameters_from(self, page):
        """What this page or an earlier one says of this page's parameters "here and below"."""
        for earlier in self.pages[: self.pages.index(page) + 1]:
            shared = SHARED.search(earlier.comment.text)
            if shared and any(re.search(rf"\b{shared.group(1)}\b", prototype) for _, prototype in page.functions):
                yield shared.groups()

    def said(self, beginning):
        for paragraph in self.overview:
            if paragraph.startswith(beginning):
                return paragraph
        raise Wrong(f'{self.path}: the overview has no paragraph that begins with "{beginning}"')

    def sentence(self, words):
        for paragraph in self.overview:
            for sentence in re.split(r"(?<=\.) ", paragraph):
                if words in sentence:
                    return sentence
        raise Wrong(f'{self.path}: the overview has no sentence with "{words}"')


def phrase(text):
    """A comment's first clause, as a NAME section has it."""
    clause = re.sub(r"\([^()]*\)", "", text)
    quoted = re.compile(r'"[^"]*"')
    held = quoted.findall(clause)
    clause = re.split(r"[:;.](?: |$)", quoted.sub("\0", clause))[0]
    for words in held:
        clause = clause.replace("\0", words, 1)
    clause = re.sub(r" +([,.;]|$)", r"\1", re.sub(r" +", " ", clause)).strip()
    return clause[0].lower() + clause[1:] if re.match(r"[A-Z][a-z']*[ ,]", clause) else clause


def literal(text):
    return text.replace("\\", "\\e").replace("-", "\\-")


def prose(text):
    text = text.replace("\\", "\\e")
    return re.sub(r"(?<![\w)])-(?=\d)", r"\\-", text)


class Words:
    """Sets the words of comments: functions with their section, parameters and fields italic, what is literal bold."""

    def __init__(self, header, names=(), parameters=()):
        self.header = header
        self.names = names  # of the functions of this page
        self.parameters = set(parameters)
        self.functions = {name for page in header.pages for name in page.names}

    def set(self, text):
        token = re.compile(r"`([^`]*)`|\bodc_\w+(?:\(\))?|\bODC_\w+|(?<![\w)])\*\w+|\b[a-z]\w*_\w+\b")
        pieces, at = [], 0
        for match in token.finditer(text):
            pieces += [prose(text[at : match.start()]), self.one(match)]
            at = match.end()
        return "".join(pieces) + prose(text[at:])

    def one(self, match):
        word = match.group(1) or match.group()
        name = word.split("(")[0]
        if name in self.functions:
            return f"\\fB\\%{name}\\fR" + ("()" if name in self.names else "(3)")
        if word.lstrip("*") in self.parameters or name in self.header.types:
            return f"\\fI\\%{word}\\fR"
        if match.group(1) or word.startswith("ODC_"):
            return "\\fB" + " ".join("\\%" + literal(part) for part in word.split()) + "\\fR"
        return prose(word)


def filled(text):
    lines = textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)
    return "\n".join("\\&" + line if line[0] in ".'" else line for line in lines)


def unfilled(lines):
    return "\n".join([".nf"] + ["\\&" + line if line[:1] in (".", "'") else line for line in lines] + [".fi"])


def set_prototype(prototype):
    """In lines that fit, each parameter's name in italics."""
    head, parameters = re.fullmatch(r"(.*?\()(.*)\)", prototype, re.S).groups()
    lines, line = [], head
    parts = parameters.split(", ")
    for i, part in enumerate(parts):
        part += ");" if i == len(parts) - 1 else ","
        if len(line) + len(part) + 1 > WIDTH and line != head:
            lines.append(line)
            line = " " * len(head) + part
        else:
            line += part if line == head else " " + part
    lines.append(line)

    def italics(line):
        line = re.sub(r"(\w+)(?=,|\);)(?<!void)", r"\\fI\1\\fB", line)
        return "\\fB" + line.replace("-", "\\-") + "\\fR"

    return [italics(line) for line in lines]


def set_code(kind):
    """A type's declaration without its comments."""
    if kind.kind == "function":
        code = " ".join(kind.code.split())
        return (
            [f"\\fB{code}\\fR"]
            if len(code) <= WIDTH
            else ["\\fB" + line + "\\fR" for line in textwrap.wrap(code, WIDTH, subsequent_indent=" " * 8)]
        )
    end = ";" if kind.kind == "struct" else ","
    lines = [f"typedef {kind.kind} {kind.name} {{"]
    lines += ["    " + code + end for _, code, _ in kind.members if code]
    lines += [f"}} {kind.name};"]
    return [f"\\fB{literal(line)}\\fR" for line in lines]


def tagged(members, words):
    """What is said of each member."""
    out = []
    for names, code, comment in members:
        if names is None:
            out.append(".PP\n" + filled(words.set(comment)))
        elif comment:
            tag = ", ".join(f"\\fB{name}\\fR" for name in names)
            value = re.search(r"= (-?\d+)$", code)
            tag += f" ({literal(value.group(1))})" if value else ""
            out += [".TP", tag, filled(words.set(comment))]
    return out


def synopsis(prototypes):
    lines = ["\\fB#include <odc/odc.h>\\fR"]
    for prototype in prototypes:
        lines += ["", *set_prototype(prototype)]
    link = "Link with \\fI\\-lodc\\fR; pkg\\-config and CMake know it as \\fBodc\\fR."
    return "\n".join([".SH SYNOPSIS", unfilled(lines), ".PP", link])


def title(header, name):
    return (
        f'.TH {name} 3 "" "libodc {header.version}" "Library Functions Manual"\n'
        '.\\" SPDX-License-Identifier: Apache-2.0\n.\\" Written by pages.py from odc.h.'
    )


def see_also(references):
    lines = [f"\\fB{literal(name)}\\fR({section})" for section, name in sorted(references)]
    return ".SH SEE ALSO\n" + ",\n".join(lines)


def parameters_of(page):
    names = {name for _, prototype in page.functions for name in re.findall(r"(\w+)(?=,|\)$)", prototype)}
    for kind in page.types:
        names |= {name for members, _, _ in kind.members if kind.kind == "struct" for name in members or []}
    return names


def errors(header, page, words):
    """Those that the page names, and those whose comments name a function of the page."""
    rows = []
    for names, code, comment in header.types["odc_status"].members:
        about = comment or ""
        if names and (names[0] in page.comment.text or any(re.search(rf"\b{name}\b", about) for name in page.names)):
            rows.append((names, code, comment))
    out = [".SH RETURN VALUE", filled(words.set(header.sentence("returns ODC_OK"))), ".SH ERRORS"]
    if rows:
        out += [*tagged(rows, words), ".PP", "The other errors are listed in \\fBlibodc\\fR(3)."]
    else:
        out += ["They are listed in \\fBlibodc\\fR(3)."]
    return out


def function_page(header, page):
    words = Words(header, page.names, parameters_of(page))
    what = prose(phrase(page.comment.text)).replace("`", "")
    out = [title(header, page.name), ".SH NAME", f"{', '.join(page.names)} \\- {what}"]
    out += [synopsis([prototype for _, prototype in page.functions]), ".SH DESCRIPTION"]
    text = SHARED.sub("", page.comment.text).rstrip()
    if page.returns_status() or page.functions[0][1].startswith("void "):
        out.append(filled(words.set(text if text.endswith(".") else text + ".")))
    else:
        out.append(filled(f"\\fB{page.name}\\fR() returns {words.set(text)}."))
    for parameter, said in header.parameters_from(page):
        out += [".PP", filled(words.set(f"`{parameter}`: {said}"))]
    if page.types:
        out.append(".SH TYPES")
        if any(kind.kind == "struct" for kind in page.types):
            out.append(filled(words.set(header.sentence("struct_size"))))
    for kind in page.types:
        out += [f".SS {kind.name}", unfilled(set_code(kind))]
        if kind.comment and kind.comment is not page.comment:
            out += [".PP", filled(words.set(kind.comment.text))]
        out += tagged(kind.members, words)
    if page.returns_status():
        out += errors(header, page, words)
    elif page.functions[0][1].startswith("void "):
        out += [".SH RETURN VALUE", f"\\fB{page.name}\\fR() returns nothing."]
    if any(re.search(r"odc_(context|shard) ", prototype) for _, prototype in page.functions):
        out += [".SH THREADS", filled(words.set(threads(header)))]
    comments = [text] + [comment or "" for kind in page.types for _, _, comment in kind.members]
    named = set(re.findall(r"\bodc_\w+", " ".join(comments)))
    others = {
        other.name
        for other in header.pages
        if other is not page and (other.section == page.section or named & set(other.names))
    }
    out.append(see_also({(3, name) for name in others} | {(3, "libodc")}))
    return "\n".join(out) + "\n"


def threads(header):
    text = header.said("Threads: ")[len("Threads: ") :]
    return text[0].upper() + text[1:]


def life(header):
    """The steps of the overview's diagram, an arrow each, and where the last one leads back to."""
    drawn = [paragraph for paragraph in header.overview if paragraph.startswith("    ")]
    rows = drawn[0].split("\n") if drawn else []
    if len(rows) != 2 or "─►" not in rows[0] or "▲" not in rows[1]:
        raise Wrong(f"{header.path}: the overview has no diagram: steps (─►) in a line, the way back (▲) in the next")
    ends = [match.end() for match in re.finditer("─►|$", rows[0])]
    back = sum(end < rows[1].index("▲") for end in ends)
    steps = [step.strip(" ─┐") for step in rows[0].split("─►")]
    again = re.search(r"[a-z][a-z ]*[a-z]", rows[1]).group()
    lines = ["    " + steps[0]] + [" \\(-> " + step for step in steps[1:]] + [f" \\(-> {steps[back]} ({again})"]
    return unfilled(lines)


def overview_page(header):
    words = Words(header)
    name, described = header.overview[0].split(": ", 1)
    about = [
        paragraph
        for paragraph in header.overview[1:]
        if not paragraph.startswith(("    ", "Every function", "Threads: "))
    ]
    out = [title(header, name), ".SH NAME", f"{name} \\- {prose(phrase(described))}"]
    out += [synopsis([]), ".SH DESCRIPTION", filled(words.set(described))]
    for paragraph in about:
        out += [".PP", filled(words.set(paragraph))]
    out += [".SS The life of a minibatch", life(header)]
    section = ""
    out.append(".SH FUNCTIONS")
    for page in header.pages:
        if page.section != section:
            section = page.section
            out.append(f".SS {prose(section)}")
        listed = ", ".join(f"\\fB{function}\\fR(3)" for function in page.names)
        out += [".TP", listed, filled(words.set(phrase(page.comment.text)))]
    out += [".SH TYPES", filled(words.set(header.sentence("struct_size")))]
    for kind in header.types.values():
        if kind.name != "odc_status":
            out += [".TP", f"\\fB{kind.name}\\fR"]
            place = kind.page and f"{kind.kind}; see \\fB\\%{kind.page.name}\\fR(3)"
            out.append(place or filled(words.set(kind.comment.text if kind.comment else kind.kind)))
    status = header.types["odc_status"]
    out += [".SH ERRORS", filled(words.set(header.sentence("returns ODC_OK"))), ".SS odc_status"]
    out.append(filled(words.set(status.comment.text)))
    out += tagged(status.members, words)
    out += [".SH THREADS", filled(words.set(threads(header)))]
    out.append(see_also({(1, "odc"), (1, "pkg-config")} | {(3, page.name) for page in header.pages[:1]}))
    return "\n".join(out) + "\n"


def write_pages(header, folder):
    pages, links = {"libodc": overview_page(header)}, {}
    for page in header.pages:
        pages[page.name] = function_page(header, page)
        for name in page.names[1:]:
            links[name] = page.name
    os.makedirs(folder, exist_ok=True)
    for name, text in pages.items():
        with open(os.path.join(folder, name + ".3"), "w", encoding="utf-8") as file:
            file.write(text)
    for name, page in links.items():
        os.symlink(page + ".3", os.path.join(folder, name + ".3"))


def main():
    if len(sys.argv) != 3:
        return "usage: pages.py HEADER FOLDER"
    try:
        write_pages(Header(sys.argv[1]), sys.argv[2])
    except (OSError, UnicodeDecodeError, Wrong) as error:
        return f"pages.py: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main())
