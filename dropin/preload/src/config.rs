//! Settings from environment variables, which are read once.

use std::net::SocketAddr;
use std::sync::OnceLock;

use farcall_shm::trusted_variable;

/// Ports of services; nothing else is moved.
const ONLY: &str = "FARCALL_RUN_ONLY";
/// Ports of services, and names of programs, that are left alone.
const EXCEPT: &str = "FARCALL_RUN_EXCEPT";

/// Set: code of the program that can make system calls itself does not use connections.
const ALLOW_DIRECT_CALLS: &str = "FARCALL_RUN_ALLOW_DIRECT_CALLS";
/// Number of transfers of a connection after which its ends pair.
const AFTER: &str = "FARCALL_RUN_AFTER";
/// Default of [`AFTER`]: pairing costs about as much as 16 round trips by TCP, so a connection that ends right after it
/// has cost at most about twice as much as without.
const TRANSFERS_BEFORE_PAIRING: u32 = 32;
/// Maximum of [`AFTER`].
const MAX_TRANSFERS_BEFORE_PAIRING: u32 = 1 << 20;

/// Set: connections that end before they have lasted are listed, too, which costs some system calls for each.
const REPORT: &str = "FARCALL_RUN_REPORT";

struct Config {
    reports: bool,
    is_off: bool,
    transfers_before_pairing: u32,
    only: Option<Vec<u16>>,
    except: Vec<u16>,
    allows_direct_calls: bool,
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
        // SAFETY: returns a number that the kernel passed at the start of the process.
        let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let after = trusted_variable(AFTER).and_then(|uses| uses.to_str()?.trim().parse().ok());
        Config {
            reports: trusted_variable(REPORT).is_some_and(|value| !value.is_empty()),
            is_off: is_excepted || is_privileged,
            transfers_before_pairing: after
                .map_or(TRANSFERS_BEFORE_PAIRING, |uses: u32| uses.min(MAX_TRANSFERS_BEFORE_PAIRING)),
            only: list(ONLY).map(|only| ports(&only)),
            except: ports(&except),
            allows_direct_calls: list(ALLOW_DIRECT_CALLS).is_some_and(|value| value != "0"),
        }
    })
}

/// Returns whether connections of this program may be moved at all.
pub fn is_on() -> bool {
    !config().is_off
}

/// Returns whether connections that do not last are listed, too.
pub fn reports() -> bool {
    config().reports
}

/// Returns the number of transfers, at the accepting end, after which the ends of a connection pair.
pub fn transfers_before_pairing() -> u32 {
    config().transfers_before_pairing
}

/// Returns whether connections to a service may be moved.
pub fn admits(service: SocketAddr) -> bool {
    let config = config();
    let port = service.port();
    !config.is_off
        && !config.except.contains(&port)
        && config.only.as_ref().is_none_or(|only| only.contains(&port))
}

/// Returns whether connections may be moved although code of the program can make system calls itself.
pub fn allows_direct_calls() -> bool {
    config().allows_direct_calls
}
