//! C programs against servers in Rust: compiled as C and as C++ without warnings, linked with the shared and the static
//! library, and run under valgrind.

#[path = "../../farcall/examples/servers/servers.rs"]
mod servers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use servers::Servers;

/// A temporary directory, which is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("farcall-capi-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the directory in which cargo built the libraries.
fn built() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Copies the shared library into `folder` under the names that the linker and the loader use.
fn install(folder: &Folder) {
    fs::copy(built().join("libfarcall_capi.so"), folder.0.join("libfarcall.so.0")).unwrap();
    let _ = fs::remove_file(folder.0.join("libfarcall.so"));
    std::os::unix::fs::symlink("libfarcall.so.0", folder.0.join("libfarcall.so")).unwrap();
}

/// Runs a command that must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said
}

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn compile(folder: &Folder, compiler: &[&str], source: &str, libraries: &[&str]) -> PathBuf {
    let program = folder.0.join(format!("program-{}", compiler.concat()));
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(WARNINGS).args(["-g", "-I"]).arg(package().join("include"));
    command.arg(package().join(source)).arg("-o").arg(&program).arg("-L").arg(&folder.0).args(libraries);
    run(&mut command);
    program
}

fn start(folder: &Folder, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", &folder.0);
    command
}

const EVERYTHING: &str = "tests/c/everything.c";

#[test]
fn c_calls_everything() {
    let (folder, servers) = (Folder::new("c"), Servers::start());
    install(&folder);
    let program = compile(&folder, &["cc", "-std=gnu99"], EVERYTHING, &["-lfarcall", "-lpthread"]);
    assert_eq!(run(start(&folder, &program).args(servers.addresses())), "ok\n");
}

#[test]
fn cpp_calls_everything_through_the_static_library() {
    let (folder, servers) = (Folder::new("cpp"), Servers::start());
    fs::copy(built().join("libfarcall_capi.a"), folder.0.join("libfarcall.a")).unwrap();
    let libraries = ["-x", "none", "-lfarcall", "-lpthread", "-ldl", "-lm", "-lgcc_s"];
    let program = compile(&folder, &["c++", "-x", "c++"], EVERYTHING, &libraries);
    assert_eq!(run(start(&folder, &program).args(servers.addresses())), "ok\n");
}

/// Skipped with a message if valgrind is not installed.
#[test]
fn valgrind_finds_no_error_and_no_leak() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no valgrind here (apt-get install valgrind)");
        return;
    }
    let (folder, servers) = (Folder::new("valgrind"), Servers::start());
    install(&folder);
    let program = compile(&folder, &["cc"], EVERYTHING, &["-lfarcall", "-lpthread"]);
    let mut command = Command::new("valgrind");
    command.args([
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect",
    ]);
    command.args(["--show-leak-kinds=definite,indirect", "--fair-sched=yes"]);
    command.arg(&program).args(servers.addresses()).env("LD_LIBRARY_PATH", &folder.0);
    let said = run(&mut command);
    assert!(said.contains("ok\n"), "{said}");
}

#[test]
fn examples_print_what_they_promise() {
    let (folder, servers) = (Folder::new("examples"), Servers::start());
    install(&folder);
    let [kv, _, stream] = servers.addresses();
    for (source, arguments) in
        [("examples/kv.c", vec![kv]), ("examples/rpc.c", vec![]), ("examples/stream.c", vec![stream])]
    {
        let program = compile(&folder, &["cc"], source, &["-lfarcall"]);
        assert_eq!(run(start(&folder, &program).args(arguments)), "hello\n", "{source}");
    }
}

/// Checks that docs/c-and-python.md contains the examples verbatim.
#[test]
fn the_document_shows_the_examples() {
    let document = fs::read_to_string(package().join("../../docs/c-and-python.md")).unwrap();
    for source in ["kv.c", "rpc.c", "stream.c"] {
        let text = fs::read_to_string(package().join("examples").join(source)).unwrap();
        assert!(document.contains(&format!("```c\n{text}```\n")), "{source}");
    }
}
