//! The Python interpreter that runs the measured Python programs.

use std::env;
use std::process::{Command, Stdio};

/// Environment variable that names the interpreter; the default is `python3`.
const VARIABLE: &str = "FARCALL_PYTHON";

/// Returns the interpreter if it has `module`, else a message that names what is missing. `package` is the module's
/// name for pip.
pub(crate) fn python_with(module: &str, package: &str) -> Result<String, String> {
    let python = env::var(VARIABLE).unwrap_or_else(|_| "python3".to_owned());
    let finds = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
    let found = Command::new(&python).args(["-c", &finds]).stdin(Stdio::null()).output();
    if found.is_ok_and(|found| found.status.success()) {
        return Ok(python);
    }
    let how = format!("pip install {package}, and {VARIABLE}=PYTHON if it is another interpreter");
    Err(format!("{python} has no {module} ({how})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_not_there_is_named_with_its_package() {
        let why = python_with("no_such_module_of_anybody", "the-package").unwrap_err();
        assert!(
            why.contains("no_such_module_of_anybody") && why.contains("pip install the-package"),
            "{why}"
        );
    }
}
