//! Which connections the program lets go through shared memory: variables, read once.

use std::net::SocketAddr;
use std::sync::OnceLock;

use farcall_shm::trusted_variable;

/// Ports of services; nothing else is moved.
const ONLY: &str = "FARCALL_RUN_ONLY";
/// Ports of services, and names of programs, that are left alone.
const EXCEPT: &str = "FARCALL_RUN_EXCEPT";

struct Config {
    is_off: bool,
    only: Option<Vec<u16>>,
    except: Vec<u16>,
}

fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let list = |name| trusted_variable(name).map(|list| list.to_string_lossy().into_owned());
        let ports =
            |list: &str| list.split(',').filter_map(|port| port.trim().parse().ok()).collect::<Vec<u16>>();
        let except = list(EXCEPT).unwrap_or_default();
        let program = std::env::current_exe().ok();
        let name = program
            .as_deref()
            .and_then(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned());
        let is_excepted = name.is_some_and(|name| except.split(',').any(|word| word.trim() == name));
        // SAFETY: asks for a number that the process was started with.
        let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        Config {
            is_off: is_excepted || is_privileged,
            only: list(ONLY).map(|only| ports(&only)),
            except: ports(&except),
        }
    })
}

/// Whether connections to a service may be moved.
pub fn admits(service: SocketAddr) -> bool {
    let config = config();
    let port = service.port();
    !config.is_off
        && !config.except.contains(&port)
        && config.only.as_ref().is_none_or(|only| only.contains(&port))
}
