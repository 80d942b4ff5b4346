// SPDX-License-Identifier: Apache-2.0
//! Paragraphs of text files in a fixed order: without a folder, of the sources of Python's standard library.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;

const SKIPPED: [&str; 6] = ["test", "tests", "site-packages", "dist-packages", "__pycache__", "idle_test"];

pub struct Paragraphs {
    files: Vec<PathBuf>,
    next_file: usize,
    found: VecDeque<Vec<u8>>,
    max_bytes: usize,
}

impl Paragraphs {
    pub fn open(data: Option<&Path>, max_bytes: usize) -> Result<Self, String> {
        let (folder, suffix) = match data {
            Some(folder) => (folder.to_path_buf(), ""),
            None => (python_library()?, ".py"),
        };
        let mut files = Vec::new();
        list(&folder, suffix, &mut files)?;
        if files.is_empty() {
            return Err(format!("{} has no text to train on", folder.display()));
        }
        Ok(Paragraphs { files, next_file: 0, found: VecDeque::new(), max_bytes })
    }

    /// The next paragraphs, from the first file again after the last; longer ones are cut.
    pub fn take(&mut self, count: usize) -> Result<Vec<Vec<u8>>, String> {
        let mut files_without = 0;
        while self.found.len() < count {
            let before = self.found.len();
            self.read_file()?;
            files_without = if self.found.len() > before { 0 } else { files_without + 1 };
            if files_without > self.files.len() {
                return Err("the files have no paragraph to train on".to_string());
            }
        }
        Ok(self.found.drain(..count).collect())
    }

    fn read_file(&mut self) -> Result<(), String> {
        let path = &self.files[self.next_file];
        self.next_file = (self.next_file + 1) % self.files.len();
        let content = std::fs::read(path).map_err(|error| format!("{} cannot be read: {}", path.display(), error))?;
        if let Ok(text) = String::from_utf8(content) {
            let paragraphs = text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty());
            self.found.extend(paragraphs.map(|one| one.bytes().take(self.max_bytes).collect()));
        } // else it is binary
        Ok(())
    }
}

fn python_library() -> Result<PathBuf, String> {
    let script = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let hint = "give a folder of text files by --data";
    let output = Command::new("python3")
        .args(["-c", script])
        .output()
        .map_err(|error| format!("python3, whose library is the text, cannot be run ({}); {}", error, hint))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && path.is_dir() {
        return Ok(path);
    }
    Err(format!("python3 does not say where its library is; {}", hint))
}

/// Sorted, with folders in place; no links.
fn list(folder: &Path, suffix: &str, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let mut entries = entries.map_err(|error| format!("{} cannot be read: {}", folder.display(), error))?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !SKIPPED.contains(&name.as_str()) => list(&entry.path(), suffix, files)?,
            Ok(kind) if kind.is_file() && name.ends_with(suffix) => files.push(entry.path()),
            _ => {}
        }
    }
    Ok(())
}
