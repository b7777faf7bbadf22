//! Clients of the key-value store.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use ::farcall_kv::client::{KvClient, Write};
use ::farcall_kv::store::PutMode;
use ::farcall_kv::wire::MultiItem;
use farcall::binding::{Code, Exclusive, Failure, version};

use crate::argument::{Out, bytes, object, text};
use crate::boundary::{made, returned, taken_back};
use crate::options::{self, farcall_options};

/// A client of a key-value store, with a connection to each of its partitions. One thread at a time: another one gets
/// FARCALL_BUSY.
pub struct farcall_kv(Exclusive<KvClient>);

/// Bytes of a program's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_bytes {
    /// Where they begin.
    pub start: *const c_void,
    /// How many.
    pub len_bytes: usize,
}

/// What a key holds. The value is lent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_item {
    /// The value: the library's memory, to be read only.
    pub value: *const c_void,
    /// Its length.
    pub value_len_bytes: usize,
    /// Another number after each change of the item.
    pub version: u64,
    /// The flags that it was stored with.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// The condition and the place of a write.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum farcall_put_mode {
    /// Stores the value, whatever is there.
    Set = 0,
    /// Only if the key has no item.
    Add = 1,
    /// Only if the key has an item.
    Replace = 2,
    /// Behind the value that is there.
    Append = 3,
    /// In front of the value that is there.
    Prepend = 4,
}

/// A value to be stored. Set it to zeros first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_write {
    /// The value.
    pub value: *const c_void,
    /// Its length.
    pub value_len_bytes: usize,
    /// How long it lives, in milliseconds; 0: for ever.
    pub time_to_live_ms: u64,
    /// Flags of the program's own.
    pub flags: u32,
    /// A farcall_put_mode; FARCALL_PUT_MODE_SET is 0.
    pub mode: u32,
}

/// Called by farcall_kv_get_many for each key: its place in the list, and its item, which is null if the key has none.
/// The item is lent until the function returns.
pub type farcall_found =
    Option<unsafe extern "C" fn(context: *mut c_void, place: usize, item: *const farcall_item)>;

impl From<MultiItem<'_>> for farcall_item {
    fn from(item: MultiItem<'_>) -> Self {
        Self {
            value: item.value.as_ptr().cast(),
            value_len_bytes: item.value.len(),
            version: item.cas,
            flags: item.flags,
            reserved: 0,
        }
    }
}

/// # Safety
/// As of [`object`] and [`bytes`].
unsafe fn read_write<'a>(write: *const farcall_write) -> Result<Write<'a>, Failure> {
    // SAFETY: passed on.
    let given = unsafe { object(write, "write")? };
    // SAFETY: passed on.
    let value = unsafe { bytes(given.value, given.value_len_bytes, "write->value")? };
    let mode = match given.mode {
        0 => PutMode::Set,
        1 => PutMode::Add,
        2 => PutMode::Replace,
        3 => PutMode::Append,
        4 => PutMode::Prepend,
        other => return Err(Failure::invalid(format!("write->mode: {other} is no farcall_put_mode"))),
    };
    let time_to_live = Duration::from_millis(given.time_to_live_ms);
    Ok(Write::of(value).flags(given.flags).time_to_live(time_to_live).mode(mode))
}

/// Does something about a key.
///
/// # Safety
/// As of [`object`] and [`bytes`].
unsafe fn about_key(
    kv: *const farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    action: impl FnOnce(&mut KvClient, &[u8]) -> Result<(), Failure>,
) -> c_int {
    returned(|| {
        // SAFETY: passed on.
        let (kv, key) = unsafe { (object(kv, "kv")?, bytes(key, key_len_bytes, "key")?) };
        kv.0.with(|kv| action(kv, key))
    })
}

/// Writes the version after a change, if the program asks for it.
///
/// # Safety
/// As of [`Out::new`], where not null.
unsafe fn give_version(new_version: u64, into: *mut u64) -> Result<(), Failure> {
    if !into.is_null() {
        // SAFETY: passed on.
        unsafe { Out::new(into, "new_version")? }.set(new_version);
    }
    Ok(())
}

/// Connects to a store whose server (farcall kv serve --rpc) listens at `address`, "host:port".
///
/// *kv is the program's until farcall_kv_close; null after a failure. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_connect(
    address: *const c_char,
    options: *const farcall_options,
    kv: *mut *mut farcall_kv,
) -> c_int {
    // SAFETY: the program's promises, here and below: pointers lead to what their types say, or are null.
    unsafe {
        made(kv, || {
            let kv = options::read(options)?.connect_kv(text(address, "address")?)?;
            Ok(farcall_kv(Exclusive::new(kv)))
        })
    }
}

/// Ends a client. Nobody may be inside of a function with it. Null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_close(kv: *mut farcall_kv) {
    // SAFETY: the program's promise.
    returned(|| unsafe { taken_back(kv) }.map(drop));
}

/// The item of a key; FARCALL_NOT_FOUND if there is none. A key has 1 to 250 bytes.
///
/// The value is lent until the next function with this client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_get(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    item: *mut farcall_item,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            let into = Out::new(item, "item")?;
            into.set(kv.get(key)?.ok_or(Code::NotFound)?.into());
            Ok(())
        })
    }
}

/// Looks many keys up at once, and calls `each` for each of them, not always in their order, in this thread. `context` is
/// handed to `each`, which must not use this client: it would get FARCALL_BUSY.
///
/// After a failure, what `each` was told is right; the other keys were not looked up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_get_many(
    kv: *mut farcall_kv,
    keys: *const farcall_bytes,
    keys_count: usize,
    each: farcall_found,
    context: *mut c_void,
) -> c_int {
    returned(|| {
        let each = each.ok_or_else(|| Failure::invalid("each: a null pointer"))?;
        // SAFETY: the program's promises.
        let (kv, keys) = unsafe { (object(kv, "kv")?, read_keys(keys, keys_count)?) };
        kv.0.with(|kv| {
            let tell = |place, item: Option<MultiItem<'_>>| {
                let item = item.map(farcall_item::from);
                // SAFETY: the program's function, with an item that lives until it returns.
                unsafe { each(context, place, item.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)) };
            };
            Ok(kv.get_many(&keys, tell)?)
        })
    })
}

/// # Safety
/// As of [`bytes`], for the list and for each key.
unsafe fn read_keys<'a>(keys: *const farcall_bytes, keys_count: usize) -> Result<Vec<&'a [u8]>, Failure> {
    if keys_count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: passed on.
    unsafe { object(keys, "keys")? };
    let len_bytes = keys_count.checked_mul(size_of::<farcall_bytes>());
    if len_bytes.is_none_or(|len_bytes| isize::try_from(len_bytes).is_err()) {
        return Err(Failure::invalid(format!("keys_count: {keys_count} are more than there is memory")));
    }
    // SAFETY: checked, and passed on.
    let keys = unsafe { std::slice::from_raw_parts(keys, keys_count) };
    // SAFETY: passed on.
    keys.iter().map(|key| unsafe { bytes(key.start, key.len_bytes, "a key") }).collect()
}

/// Stores a value. FARCALL_NOT_STORED if the condition of `write->mode` did not hold.
///
/// The item's version after that goes to *new_version, which may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_put(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    write: *const farcall_write,
    new_version: *mut u64,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            give_version(version(kv.put(key, read_write(write)?)?)?, new_version)
        })
    }
}

/// Stores a value if the item still has `version`, as farcall_kv_get told it; `write->mode` is of no account.
/// FARCALL_OTHER_VERSION if it has another one, FARCALL_NOT_FOUND if the key has no item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_compare_and_swap(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    version: u64,
    write: *const farcall_write,
    new_version: *mut u64,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            let change = kv.compare_and_swap(key, version, read_write(write)?)?;
            give_version(farcall::binding::version(change)?, new_version)
        })
    }
}

/// Removes the item of a key, whatever its version if `version` is 0. FARCALL_NOT_FOUND, FARCALL_OTHER_VERSION.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_delete(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    version: u64,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            let change = kv.delete(key, (version != 0).then_some(version))?;
            farcall::binding::version(change).map(drop)
        })
    }
}

/// Sets how long an item lives from now on, in milliseconds; 0: for ever. FARCALL_NOT_FOUND if the key has no item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_touch(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    time_to_live_ms: u64,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            match kv.touch(key, Duration::from_millis(time_to_live_ms))? {
                true => Ok(()),
                false => Err(Code::NotFound.into()),
            }
        })
    }
}
