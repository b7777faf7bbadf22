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

/// A client of a key-value store, with a connection to each partition of the store. Used by one thread at a time: a
/// function that finds it in use fails with FARCALL_BUSY.
pub struct farcall_kv(Exclusive<KvClient>);

/// A range of bytes in memory of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_bytes {
    /// Address of the first byte; may be null if there are none.
    pub start: *const c_void,
    /// Length in bytes.
    pub len_bytes: usize,
}

/// The item of a key. The value is memory of the library; the function that returns the item states how long it is
/// valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_item {
    /// The value, which must not be written.
    pub value: *const c_void,
    /// Length of the value in bytes.
    pub value_len_bytes: usize,
    /// Version of the item, another number after each change.
    pub version: u64,
    /// Flags with which the item was stored.
    pub flags: u32,
    /// Reserved; 0.
    pub reserved: u32,
}

/// Condition of a write, and its effect on an existing value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum farcall_put_mode {
    /// Stores the value unconditionally.
    Set = 0,
    /// Stores the value only if the key has no item.
    Add = 1,
    /// Stores the value only if the key has an item.
    Replace = 2,
    /// Appends to the value of the item, which keeps its flags and its time to live.
    Append = 3,
    /// Prepends to the value of the item, which keeps its flags and its time to live.
    Prepend = 4,
}

/// A value to be stored. Initialize it with zeros: 0 is the default of every field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_write {
    /// The value; may be null if it is empty.
    pub value: *const c_void,
    /// Length of the value in bytes.
    pub value_len_bytes: usize,
    /// Time to live in milliseconds; 0: unlimited.
    pub time_to_live_ms: u64,
    /// Flags, which the store returns with the item and does not interpret.
    pub flags: u32,
    /// A farcall_put_mode; FARCALL_PUT_MODE_SET is 0.
    pub mode: u32,
}

/// Called by farcall_kv_get_many for each key, with the index of the key in the list and its item, or a null pointer
/// if the key has no item. The item is valid until the function returns. No exception may leave the function.
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

/// Reads a write that a program passes.
///
/// # Safety
/// `write` meets the contract of [`object`] during `'a`, and the value in it that of [`bytes`].
unsafe fn read_write<'a>(write: *const farcall_write) -> Result<Write<'a>, Failure> {
    // SAFETY: by the contract of `read_write`, `write` meets that of `object` during `'a`.
    let given = unsafe { object(write, "write")? };
    // SAFETY: by the contract of `read_write`, the value meets that of `bytes` during `'a`.
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

/// Runs `action` with a client and a key.
///
/// # Safety
/// Until this function returns, `kv` meets the contract of [`object`], and `key` and `key_len_bytes` meet that of
/// [`bytes`].
unsafe fn about_key(
    kv: *const farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    action: impl FnOnce(&mut KvClient, &[u8]) -> Result<(), Failure>,
) -> c_int {
    returned(|| {
        // SAFETY: by the contract of `about_key` the client and the key meet those of `object` and `bytes` until it
        // returns, which is after `action`.
        let (kv, key) = unsafe { (object(kv, "kv")?, bytes(key, key_len_bytes, "key")?) };
        kv.0.with(|kv| action(kv, key))
    })
}

/// Writes the version of an item after a change to `*into`, unless `into` is null.
///
/// # Safety
/// Unless null, `into` meets the contract of [`Out::new`] until this function returns.
unsafe fn give_version(new_version: u64, into: *mut u64) -> Result<(), Failure> {
    if !into.is_null() {
        // SAFETY: `into` is not null, so by the contract of `give_version` it meets that of `Out::new`.
        unsafe { Out::new(into, "new_version")? }.set(new_version);
    }
    Ok(())
}

/// Connects to a store whose server (farcall kv serve --rpc) listens at `address`, "host:port".
///
/// *kv belongs to the program until farcall_kv_close. It is null after a failure. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_connect(
    address: *const c_char,
    options: *const farcall_options,
    kv: *mut *mut farcall_kv,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `address`, `options` and its texts are readable and not written, and `*kv` is
    // writable, until this function returns. `made`, `options::read` and `text` require no more.
    unsafe {
        made(kv, || {
            let kv = options::read(options)?.connect_kv(text(address, "address")?)?;
            Ok(farcall_kv(Exclusive::new(kv)))
        })
    }
}

/// Closes a client and frees it. No other function may be running with it, or be called with it later. A null pointer
/// is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_close(kv: *mut farcall_kv) {
    // SAFETY: farcall(3), "Pointers": `kv` is null or a client of farcall_kv_connect that is closed only once, here,
    // and no other thread uses it.
    returned(|| unsafe { taken_back(kv) }.map(drop));
}

/// Reads the item of a key. Returns FARCALL_NOT_FOUND if the key has no item. A key has 1 to 250 bytes.
///
/// The value is valid until the next function call with this client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_get(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    item: *mut farcall_item,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `kv` is an open client, the bytes of the key are readable and not written, and
    // `*item` is writable, until this function returns.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            let into = Out::new(item, "item")?;
            into.set(kv.get(key)?.ok_or(Code::NotFound)?.into());
            Ok(())
        })
    }
}

/// Looks up many keys at once, and calls `each` for each of them in this thread, not always in the order of the list.
/// `context` is passed to `each`. A function that `each` calls with this client fails with FARCALL_BUSY.
///
/// After a failure, the results that `each` received are valid. The other keys were not looked up.
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
        // SAFETY: farcall(3), "Pointers": `kv` is an open client, and the list of `keys_count` keys and the bytes of
        // each key are readable and not written, until this function returns.
        let (kv, keys) = unsafe { (object(kv, "kv")?, read_keys(keys, keys_count)?) };
        kv.0.with(|kv| {
            let tell = |place, item: Option<MultiItem<'_>>| {
                let item = item.map(farcall_item::from);
                // SAFETY: `each` is a function of the type farcall_found, which no exception leaves, called with the
                // context that belongs to it. The item outlives the call, and farcall_found lets `each` use it no
                // longer.
                unsafe { each(context, place, item.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)) };
            };
            Ok(kv.get_many(&keys, tell)?)
        })
    })
}

/// Reads the list of keys that a program passes.
///
/// # Errors
/// Returns `FARCALL_INVALID` if the list is null or misaligned, or its length is impossible, or a key is null and not
/// empty.
///
/// # Safety
/// Unless `keys_count` is 0 or `keys` is null or misaligned, `keys` addresses `keys_count` elements that are readable
/// and not written during `'a`. Each key meets the contract of [`bytes`] during `'a`.
unsafe fn read_keys<'a>(keys: *const farcall_bytes, keys_count: usize) -> Result<Vec<&'a [u8]>, Failure> {
    if keys_count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: `keys_count` is not 0, so by the contract of `read_keys` a first element is readable. The reference is
    // discarded at once.
    unsafe { object(keys, "keys")? };
    let len_bytes = keys_count.checked_mul(size_of::<farcall_bytes>());
    if len_bytes.is_none_or(|len_bytes| isize::try_from(len_bytes).is_err()) {
        return Err(Failure::invalid(format!("keys_count: {keys_count} are more than there is memory")));
    }
    // SAFETY: `object` found `keys` neither null nor misaligned, and the list is at most `isize::MAX` bytes long. By
    // the contract of `read_keys` it is readable and not written during `'a`.
    let keys = unsafe { std::slice::from_raw_parts(keys, keys_count) };
    // SAFETY: by the contract of `read_keys` each key meets that of `bytes` during `'a`.
    keys.iter().map(|key| unsafe { bytes(key.start, key.len_bytes, "a key") }).collect()
}

/// Stores a value. Returns FARCALL_NOT_STORED if the condition of `write->mode` does not hold.
///
/// Writes the new version of the item to *new_version, unless `new_version` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_put(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    write: *const farcall_write,
    new_version: *mut u64,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `kv` is an open client, the bytes of the key, `*write` and the value in it are
    // readable and not written, and `*new_version` is writable unless null, until this function returns.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            give_version(version(kv.put(key, read_write(write)?)?)?, new_version)
        })
    }
}

/// Stores a value if the item still has the version that an earlier function returned. `write->mode` has no effect.
/// Returns FARCALL_OTHER_VERSION if the item has another version, and FARCALL_NOT_FOUND if the key has no item.
///
/// Writes the new version of the item to *new_version, unless `new_version` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_compare_and_swap(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    version: u64,
    write: *const farcall_write,
    new_version: *mut u64,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `kv` is an open client, the bytes of the key, `*write` and the value in it are
    // readable and not written, and `*new_version` is writable unless null, until this function returns.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            let change = kv.compare_and_swap(key, version, read_write(write)?)?;
            give_version(farcall::binding::version(change)?, new_version)
        })
    }
}

/// Removes the item of a key if it has this version; if `version` is 0, in any version. Returns FARCALL_OTHER_VERSION
/// if the item has another version, and FARCALL_NOT_FOUND if the key has no item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_delete(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    version: u64,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `kv` is an open client, and the bytes of the key are readable and not written,
    // until this function returns.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            let change = kv.delete(key, (version != 0).then_some(version))?;
            farcall::binding::version(change).map(drop)
        })
    }
}

/// Sets the remaining time to live of an item in milliseconds; 0: unlimited. Returns FARCALL_NOT_FOUND if the key has
/// no item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_kv_touch(
    kv: *mut farcall_kv,
    key: *const c_void,
    key_len_bytes: usize,
    time_to_live_ms: u64,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `kv` is an open client, and the bytes of the key are readable and not written,
    // until this function returns.
    unsafe {
        about_key(kv, key, key_len_bytes, |kv, key| {
            match kv.touch(key, Duration::from_millis(time_to_live_ms))? {
                true => Ok(()),
                false => Err(Code::NotFound.into()),
            }
        })
    }
}
