// SPDX-License-Identifier: Apache-2.0
//! Finds libodc: in ODC_LIB_DIR, else by pkg-config.

use std::path::Path;
use std::process::Command;

/// What src/lib.rs declares.
const NEEDED: &str = "libodc 0.1 or a later 0.x";
const IN_PKG_CONFIGS_WORDS: [&str; 2] = ["odc >= 0.1", "odc < 1"];

fn main() {
    println!("cargo:rerun-if-env-changed=ODC_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let found = match std::env::var("ODC_LIB_DIR") {
        Ok(directory) => in_directory(&directory),
        Err(_) => by_pkg_config(),
    };
    if let Err(sentence) = found {
        eprintln!("{}", sentence);
        std::process::exit(1);
    }
}

fn in_directory(directory: &str) -> Result<(), String> {
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
    let program = std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let ask = |question: &[&str]| Command::new(&program).args(question).output();
    let hint = format!(
        "{} is needed, and what it requires: install its development files, name the folder of its odc.pc in PKG_CONFIG_PATH, \
         or set ODC_LIB_DIR to the folder of libodc.so",
        NEEDED
    );
    let output = ask(&[&["--print-errors", "--libs"], &IN_PKG_CONFIGS_WORDS[..]].concat()).map_err(|error| {
        format!("libodc was not found: ODC_LIB_DIR is not set, and {} cannot be run ({}); {}", program, error, hint)
    })?;
    if !output.status.success() {
        let answer = |question| ask(&[question, "odc"]).map(|output| trimmed(&output.stdout)).unwrap_or_default();
        let found = match (answer("--modversion"), answer("--variable=libdir")) {
            (version, folder) if version.is_empty() || folder.is_empty() => "libodc was not found".to_string(),
            (version, folder) => format!("libodc {} was found in {}", version, folder),
        };
        let words = trimmed(&output.stderr).replace('\n', " ");
        return Err(format!("{}: ODC_LIB_DIR is not set, and {} says: {}; {}", found, program, words, hint));
    }
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    for flag in split(&words) {
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

/// As a shell does: pkg-config puts a backslash before what would end a word.
fn split(words: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut characters = words.trim().chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => found.last_mut().unwrap().extend(characters.next()),
            ' ' | '\n' => found.push(String::new()),
            other => found.last_mut().unwrap().push(other),
        }
    }
    found
}
