// SPDX-License-Identifier: Apache-2.0
//! Compares src/lib.rs with odc.h, both ways. Two programs, one of C made from odc.h and one of Rust made from src/lib.rs,
//! print the value of each constant, the size of each struct and the place of each field as their compilers see them; the
//! C one also assigns each function, and compares each field, with the type that src/lib.rs declares.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const RUST: &str = include_str!("../src/lib.rs");

fn header_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../include/odc/odc.h")
}

fn header() -> String {
    std::fs::read_to_string(header_path()).unwrap()
}

/// The names declared by a text, in order.
#[derive(Default)]
struct Names {
    constants: Vec<String>,
    structs: Vec<(String, Vec<Declared>)>,
    opaque: BTreeSet<String>,
    functions: Vec<Function>,
    callbacks: Vec<Function>,
}

/// A field or an argument. Its type in C is not parsed: the compiler checks it.
struct Declared {
    name: String,
    rust_type: String,
}

struct Function {
    name: String,
    arguments: Vec<Declared>,
    result: String,
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The name at the end of a declaration of C.
fn last_word(declaration: &str) -> String {
    let declaration = declaration.trim_end_matches(|c| !is_word(c));
    let start = declaration.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
    declaration[start..].to_string()
}

fn declared_in_c(declaration: &str) -> Declared {
    Declared { name: last_word(declaration), rust_type: String::new() }
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap().to_string();
    parts.fold(first, |text, part| text + part.split_once("*/").unwrap().1)
}

/// The text between `open` and the last `close`.
fn inside<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
    let text = text.split_once(open).unwrap().1;
    text.rsplit_once(close).unwrap().0
}

fn parse_c(text: &str) -> Names {
    let mut names = Names::default();
    let mut code = String::new();
    for line in without_comments(text).lines() {
        match line.trim().strip_prefix('#') {
            Some(directive) => names.constants.extend(macro_with_value(directive)),
            None => code.extend([line, " "]),
        }
    }
    for statement in statements(&code) {
        parse_statement(&statement, &mut names);
    }
    names
}

fn macro_with_value(directive: &str) -> Option<String> {
    let mut words = directive.split_whitespace();
    let name = words.next().filter(|&word| word == "define").and(words.next())?;
    words.next().filter(|value| !value.starts_with("__")).map(|_| name.to_string())
}

/// Splits at the semicolons outside of braces.
fn statements(code: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut depth = 0;
    for character in code.replace("extern \"C\" {", "").chars() {
        depth += (character == '{') as i32 - (character == '}') as i32;
        match character {
            ';' if depth == 0 => found.push(String::new()),
            other => found.last_mut().unwrap().push(other),
        }
    }
    found.iter().map(|statement| statement.trim().to_string()).filter(|statement| statement.len() > 1).collect()
}

fn parse_statement(statement: &str, names: &mut Names) {
    if let Some(function) = statement.strip_prefix("ODC_API ") {
        let (head, arguments) = function.split_once('(').unwrap();
        names.functions.push(c_function(last_word(head), arguments));
    } else if statement.starts_with("typedef enum") {
        let values = inside(statement, "{", "}").split(',').map(|value| last_word(value.split('=').next().unwrap()));
        names.constants.extend(values.filter(|name| !name.is_empty()));
    } else if statement.starts_with("typedef struct") && statement.contains('{') {
        let fields = inside(statement, "{", "}").split([';', ',']).filter(|field| !field.trim().is_empty());
        names.structs.push((last_word(statement), fields.map(declared_in_c).collect()));
    } else if statement.starts_with("typedef struct") {
        names.opaque.insert(last_word(statement));
    } else if statement.starts_with("typedef") && statement.contains("(*") {
        let (name, arguments) = statement.split_once("(*").unwrap().1.split_once(")(").unwrap();
        names.callbacks.push(c_function(name.to_string(), arguments));
    } else {
        panic!("this test does not understand this of odc.h: {}", statement);
    }
}

fn c_function(name: String, arguments: &str) -> Function {
    let arguments = arguments.split(',').map(declared_in_c).filter(|one| one.name != "void").collect();
    Function { name, arguments, result: String::new() }
}

fn declared_in_rust(declaration: &str) -> Option<Declared> {
    let (name, rust_type) = declaration.split_once(':')?;
    let name = name.trim().trim_start_matches("pub ").to_string();
    Some(Declared { name, rust_type: rust_type.trim().to_string() })
}

fn rust_function(name: &str, signature: &str) -> Function {
    let (arguments, result) = signature.rsplit_once(')').unwrap();
    let result = result.trim().strip_prefix("->").unwrap_or("()").trim().to_string();
    let arguments = arguments.split(',').filter_map(declared_in_rust).collect();
    Function { name: name.trim().to_string(), arguments, result }
}

fn parse_rust(text: &str) -> Names {
    let mut names = Names::default();
    let code: String = text.lines().map(|line| line.split("//").next().unwrap().to_string() + " ").collect();
    for item in code.split("pub const ").skip(1) {
        names.constants.push(item.split(':').next().unwrap().to_string());
    }
    for item in code.split("pub struct ").skip(1) {
        let (name, fields) = item.split_once('{').unwrap();
        let fields = fields.split_once('}').unwrap().0;
        if fields.contains("_private") {
            names.opaque.insert(name.trim().to_string());
        } else {
            names.structs.push((name.trim().to_string(), fields.split(',').filter_map(declared_in_rust).collect()));
        }
    }
    for item in code.split("pub fn ").skip(1) {
        let (name, signature) = item.split_once(';').unwrap().0.split_once('(').unwrap();
        names.functions.push(rust_function(name, signature));
    }
    for item in code.split("pub type ").skip(1) {
        let (name, definition) = item.split_once(';').unwrap().0.split_once('=').unwrap();
        if let Some((_, signature)) = definition.split_once("extern \"C\" fn(") {
            names.callbacks.push(rust_function(name, signature.trim_end().trim_end_matches('>')));
        }
    }
    names
}

/// A Rust type in C syntax. `size_t` is `marked_size`, a type of its own, so that it is not taken
/// for uint64_t.
fn c_type(rust_type: &str) -> String {
    if let Some(target) = rust_type.strip_prefix("*const ") {
        return format!("{} const *", c_type(target));
    }
    if let Some(target) = rust_type.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    let simple = [
        ("()", "void"),
        ("c_void", "void"),
        ("c_char", "char"),
        ("c_int", "int"),
        ("i32", "int32_t"),
        ("u32", "uint32_t"),
        ("i64", "int64_t"),
        ("u64", "uint64_t"),
        ("f32", "float"),
        ("f64", "double"),
        ("usize", "marked_size"),
    ];
    simple.iter().find(|(rust, _)| *rust == rust_type).map_or(rust_type, |(_, c)| c).to_string()
}

/// The output of both programs, by name.
fn print_names(names: &Names) -> String {
    let mut lines = String::new();
    names.opaque.iter().for_each(|name| writeln!(lines, "opaque {}", name).unwrap());
    for function in names.functions.iter().chain(&names.callbacks) {
        let arguments: Vec<_> = function.arguments.iter().map(|one| one.name.as_str()).collect();
        writeln!(lines, "function {}({})", function.name, arguments.join(", ")).unwrap();
    }
    lines
}

fn c_program(c: &Names, rust: &Names) -> String {
    let mut lines = String::from(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n\
         typedef unsigned long long marked_size;\n#define size_t marked_size\n#include \"odc.h\"\n",
    );
    let mut out = |line: String| lines += &(line + "\n");
    let prototype = |one: &Function, pointer: &str| {
        let arguments: Vec<_> = one.arguments.iter().map(|one| c_type(&one.rust_type)).collect();
        let arguments = if arguments.is_empty() { "void".to_string() } else { arguments.join(", ") };
        format!("{} (*{})({})", c_type(&one.result), pointer, arguments)
    };
    for one in &rust.functions {
        out(format!("{} = {};", prototype(one, &format!("as_rust_has_{}", one.name)), one.name));
    }
    for one in &rust.callbacks {
        let pointer = prototype(one, "");
        out(format!("_Static_assert(__builtin_types_compatible_p({}, {}), \"{0}\");", one.name, pointer));
    }
    for (name, fields) in &rust.structs {
        for field in fields {
            let field_type = c_type(&field.rust_type);
            out(format!(
                "_Static_assert(__builtin_types_compatible_p(__typeof__((({} *)0)->{}), {}), \"{0}.{1}\");",
                name, field.name, field_type
            ));
        }
    }
    out("int main(void) {".to_string());
    for name in &c.constants {
        out(format!("printf(\"constant {0} = %lld\\n\", (long long)({0}));", name));
    }
    out("printf(\"status of %zu bytes, signed: %d\\n\", sizeof(odc_status), (odc_status)-1 < 0);".to_string());
    for (name, fields) in &c.structs {
        out(format!("printf(\"struct {0} of %zu bytes\\n\", sizeof({0}));", name));
        for field in fields {
            out(format!(
                "printf(\"field {0}.{1} of %zu bytes at %zu\\n\", sizeof((({0} *)0)->{1}), offsetof({0}, {1}));",
                name, field.name
            ));
        }
    }
    out("}".to_string());
    lines
}

fn rust_program(rust: &Names) -> String {
    let mut lines = String::from(
        "#[allow(dead_code)]\n#[path = \"lib.rs\"]\nmod sys;\n\
         fn bytes<T>(_: *const T) -> usize { std::mem::size_of::<T>() }\nfn main() {\n",
    );
    let mut out = |line: String| lines += &(line + "\n");
    for name in &rust.constants {
        out(format!("println!(\"constant {0} = {{}}\", sys::{0} as i64);", name));
    }
    out("println!(\"status of {} bytes, signed: {}\", std::mem::size_of::<sys::odc_status>(), \
         ((!0 as sys::odc_status) < 0) as i32);"
        .to_string());
    for (name, fields) in &rust.structs {
        out(format!("let one = std::mem::MaybeUninit::<sys::{}>::uninit(); let one = one.as_ptr();", name));
        out(format!("println!(\"struct {0} of {{}} bytes\", bytes(one));", name));
        for field in fields {
            out(format!(
                "{{ let field = unsafe {{ std::ptr::addr_of!((*one).{1}) }}; println!(\"field {0}.{1} of {{}} bytes at \
                 {{}}\", bytes(field), field as usize - one as usize); }}",
                name, field.name
            ));
        }
    }
    out("}".to_string());
    lines
}

/// Compiles and runs a program. The error is the compiler's.
fn run(mut compiler: Command, folder: &Path) -> Result<String, String> {
    let output = compiler.current_dir(folder).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let output = Command::new(folder.join("program")).output().unwrap();
    assert!(output.status.success());
    Ok(String::from_utf8(output.stdout).unwrap())
}

/// The lines that only one of them has.
fn differences(c: &str, rust: &str) -> String {
    let (c, rust): (BTreeSet<_>, BTreeSet<_>) = (c.lines().collect(), rust.lines().collect());
    let only = |who: &str, one: &BTreeSet<&str>, other: &BTreeSet<&str>| -> String {
        one.difference(other).map(|line| format!("only {}: {}\n", who, line)).collect()
    };
    only("odc.h", &c, &rust) + &only("odc-sys", &rust, &c)
}

fn compare(header: &str, source: &str) -> Result<(), String> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "layout-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Relaxed)
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let (c, rust) = (parse_c(header), parse_rust(source));
    for (name, text) in [
        ("odc.h", header.to_string()),
        ("lib.rs", source.to_string()),
        ("program.c", c_program(&c, &rust)),
        ("program.rs", rust_program(&rust)),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    // The functions are declared, not there: only main is called.
    cc.args(["-std=c11", "-Werror", "-Wl,--unresolved-symbols=ignore-all", "program.c", "-o", "program"]);
    let from_c = run(cc, &folder).map(|lines| print_names(&c) + &lines);
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2021", "program.rs", "-o", "program"]);
    let from_rust = run(rustc, &folder).map(|lines| print_names(&rust) + &lines);
    std::fs::remove_dir_all(&folder).unwrap();
    match differences(&from_c?, &from_rust?) {
        none if none.is_empty() => Ok(()),
        some => Err(some),
    }
}

#[test]
fn everything_is_as_odc_h_has_it() {
    if let Err(difference) = compare(&header(), RUST) {
        panic!("{}", difference);
    }
}

/// Otherwise the comparison would be of nothing.
#[test]
fn all_of_odc_h_is_read() {
    let (text, c) = (without_comments(&header()), parse_c(&header()));
    let count = |what: &str| text.matches(what).count();
    assert_eq!(c.functions.len(), text.lines().filter(|line| line.starts_with("ODC_API ")).count());
    assert_eq!(c.structs.len() + c.opaque.len(), count("typedef struct "));
    assert_eq!(c.callbacks.len(), count("(*"));
    assert!(c.functions.len() >= 33 && c.structs.len() >= 10 && c.constants.len() >= 29);
    for word in text.split(|c| !is_word(c)).filter(|word| word.starts_with("ODC_")) {
        let other = ["ODC_ODC_H", "ODC_API"].contains(&word);
        assert!(other || c.constants.iter().any(|name| name == word), "{} was not read", word);
    }
}

/// A change in the text of odc-sys, or of odc.h, and the comparison's result.
#[test]
fn each_difference_is_found() {
    let in_rust = [
        ("pub rank: i32,", "pub rank: i64,", "odc_config.rank"),
        ("pub device: *const c_char,", "pub device: *mut c_char,", "odc_config.device"),
        ("    pub packets_sent: u64,\n", "", "only odc.h: field odc_stats.packets_sent"),
        ("    pub nic: *const c_char,\n    pub peer_nic:", "    pub peer_nic:", "only odc.h: field odc_route.nic"),
        (
            "pub makespan: f64,\n    pub lower_bound",
            "pub lower_bound: f64,\n    pub makespan",
            "odc_plan_summary.makespan",
        ),
        ("ODC_ERROR_DEVICE: odc_status = -13", "ODC_ERROR_DEVICE: odc_status = -14", "constant ODC_ERROR_DEVICE = -13"),
        ("odc_status = c_int;", "odc_status = i64;", "status of 4 bytes"),
        ("(context: *const odc_context) -> u64", "(context: *const odc_context) -> u32", "as_rust_has_odc_minibatch"),
        (
            "values: *mut f64, count: usize, op: i32) ",
            "values: *mut f64, count: u64, op: i32) ",
            "odc_minibatch_sync_reduce",
        ),
        ("shard: *mut odc_shard, full: *const c_void", "shard: *mut odc_shard, full: *mut c_void", "odc_scatter_add"),
        ("a: *mut f64, b: *mut f64)", "b: *mut f64, a: *mut f64)", "only odc.h: function odc_plan_cost(model, a, b)"),
        ("fn odc_build(", "fn odc_built(", "odc_built"),
        ("(arg: *mut c_void) -> c_int", "(arg: *const c_void) -> c_int", "odc_interrupted_fn"),
    ];
    let in_c = [
        (
            "ODC_API uint32_t odc_version(void);",
            "ODC_API uint32_t odc_version(void);\nODC_API int odc_more(int what);",
            "only odc.h: function odc_more(what)",
        ),
        (
            "    uint64_t packets_sent;",
            "    uint64_t packets_sent;\n    int32_t more, reserved;",
            "only odc.h: field odc_stats.more",
        ),
        ("ODC_F16 = 4,", "ODC_F16 = 4, ODC_F8 = 6,", "only odc.h: constant ODC_F8 = 6"),
        (
            "#define ODC_VERSION_MINOR 1",
            "#define ODC_VERSION_MINOR 1\n#define ODC_MORE 9",
            "only odc.h: constant ODC_MORE = 9",
        ),
        ("#define ODC_VERSION_PATCH 0", "#define ODC_VERSION_PATCH 3", "constant ODC_VERSION_PATCH = 3"),
        (
            "int32_t rank, int32_t memory, odc_route",
            "int32_t rank, int64_t memory, odc_route",
            "as_rust_has_odc_get_route",
        ),
        (
            "typedef struct odc_shard odc_shard;",
            "typedef struct odc_shard odc_shard;\ntypedef struct odc_more odc_more;",
            "only odc.h: opaque odc_more",
        ),
    ];
    let (header, mut missed) = (header(), String::new());
    let mut expect = |changed: bool, result: Result<(), String>, words: &str| {
        assert!(changed, "there is nothing to change for {:?}", words);
        match result {
            Err(difference) if difference.contains(words) => {}
            other => writeln!(missed, "not found: {}; instead {:?}", words, other).unwrap(),
        }
    };
    for (from, to, words) in in_rust {
        expect(RUST.contains(from), compare(&header, &RUST.replacen(from, to, 1)), words);
    }
    for (from, to, words) in in_c {
        expect(header.contains(from), compare(&header.replacen(from, to, 1), RUST), words);
    }
    assert!(missed.is_empty(), "{}", missed);
}
