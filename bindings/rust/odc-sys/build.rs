// SPDX-License-Identifier: Apache-2.0
//! Finds libodc: in ODC_LIB_DIR, or by pkg-config.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// The library's name and version required by src/lib.rs.
const NEEDED: &str = "libodc 0.1 or a later 0.x";
const IN_PKG_CONFIGS_WORDS: [&str; 2] = ["odc >= 0.1", "odc < 1"];
const NOT_UTF_8: &str =
    "not UTF-8, and cargo takes no such path; name the folder of libodc.so otherwise, by a link, say";
/// The variables on which pkg-config's answer depends.
const ASKED_WITH: [&str; 6] = [
    "PKG_CONFIG",
    "PKG_CONFIG_PATH",
    "PKG_CONFIG_LIBDIR",
    "PKG_CONFIG_SYSROOT_DIR",
    "PKG_CONFIG_ALLOW_SYSTEM_LIBS",
    "PKG_CONFIG_SYSTEM_LIBRARY_PATH",
];

fn main() {
    println!("cargo:rerun-if-env-changed=ODC_LIB_DIR");
    for name in ASKED_WITH {
        println!("cargo:rerun-if-env-changed={}", name);
    }
    let found = match std::env::var_os("ODC_LIB_DIR") {
        Some(directory) => in_directory(&directory),
        None => by_pkg_config(),
    };
    if let Err(sentence) = found {
        eprintln!("{}", sentence);
        std::process::exit(1);
    }
}

fn in_directory(given: &OsStr) -> Result<(), String> {
    let directory = given.to_str().ok_or_else(|| format!("ODC_LIB_DIR is {:?}, which is {}", given, NOT_UTF_8))?;
    if Path::new(directory).is_relative() {
        return Err(format!("ODC_LIB_DIR is \"{}\", which is relative; give an absolute path", directory));
    }
    if !Path::new(directory).join("libodc.so").exists() {
        return Err(format!(
            "ODC_LIB_DIR is \"{}\", but there is no libodc.so in it; {} is needed: set it to the folder of libodc.so \
             (of a build: build/release/lib), or unset it to ask pkg-config",
            directory, NEEDED
        ));
    }
    println!("cargo:rerun-if-changed={}/libodc.so", directory);
    println!("cargo:rustc-link-search=native={}", directory);
    println!("cargo:rustc-link-lib=dylib=odc");
    Ok(())
}

fn by_pkg_config() -> Result<(), String> {
    let program = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let ask = |question: &[&str]| Command::new(&program).args(question).output();
    let hint = format!(
        "{} is needed, and what it requires: install its development files, name the folder of its odc.pc in PKG_CONFIG_PATH, \
         or set ODC_LIB_DIR to the folder of libodc.so",
        NEEDED
    );
    let shown = Path::new(&program).display();
    let output = ask(&[&["--print-errors", "--libs"], &IN_PKG_CONFIGS_WORDS[..]].concat()).map_err(|error| {
        format!("libodc was not found: ODC_LIB_DIR is not set, and {} cannot be run ({}); {}", shown, error, hint)
    })?;
    if !output.status.success() {
        let answer = |question| ask(&[question, "odc"]).map(|output| trimmed(&output.stdout)).unwrap_or_default();
        let found = match (answer("--modversion"), answer("--variable=libdir")) {
            (version, folder) if version.is_empty() || folder.is_empty() => "libodc was not found".to_string(),
            (version, folder) => format!("libodc {} was found in {}", version, folder),
        };
        let words = trimmed(&output.stderr).replace('\n', " ");
        return Err(format!("{}: ODC_LIB_DIR is not set, and {} says: {}; {}", found, shown, words, hint));
    }
    for word in split(&output.stdout) {
        let flag = String::from_utf8(word).map_err(|error| {
            format!("{} says {:?}, which is {}", shown, String::from_utf8_lossy(error.as_bytes()), NOT_UTF_8)
        })?;
        if let Some(directory) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", directory);
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={}", library);
        }
    }
    Ok(())
}

fn trimmed(words: &[u8]) -> String {
    String::from_utf8_lossy(words).trim().to_string()
}

/// Unquotes like a shell: pkg-config puts a backslash before each byte that is special in a shell,
/// and before each byte of a character that is not ASCII.
fn split(words: &[u8]) -> Vec<Vec<u8>> {
    let mut found = vec![Vec::new()];
    let mut bytes = words.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => found.last_mut().unwrap().extend(bytes.next()),
            b' ' | b'\n' => found.push(Vec::new()),
            other => found.last_mut().unwrap().push(other),
        }
    }
    found
}
