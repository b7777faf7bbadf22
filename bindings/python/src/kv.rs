//! Clients of the key-value store.

use farcall::binding::{Code, Failure, version};
use farcall_kv::client::{KvClient, Write};
use farcall_kv::store::PutMode;
use farcall_kv::wire::MultiItem;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Sent;
use crate::error::raised;
use crate::held::Held;
use crate::options::{Options, duration, plain};

/// The item of a key.
#[pyclass(frozen, get_all, module = "farcall")]
pub(crate) struct Item {
    value: Py<PyBytes>,
    version: u64,
    flags: u32,
}

/// An item that was read without the GIL, before its conversion to a Python object.
struct Found {
    value: Vec<u8>,
    version: u64,
    flags: u32,
}

impl From<MultiItem<'_>> for Found {
    fn from(item: MultiItem<'_>) -> Self {
        Self { value: item.value.to_vec(), version: item.cas, flags: item.flags }
    }
}

impl Found {
    fn give(self, py: Python<'_>) -> Item {
        Item { value: PyBytes::new(py, &self.value).unbind(), version: self.version, flags: self.flags }
    }
}

/// A client of a key-value store.
#[pyclass(frozen, module = "farcall")]
pub(crate) struct Kv(Held<KvClient>);

fn mode_of(name: &str) -> Result<PutMode, Failure> {
    Ok(match name {
        "set" => PutMode::Set,
        "add" => PutMode::Add,
        "replace" => PutMode::Replace,
        "append" => PutMode::Append,
        "prepend" => PutMode::Prepend,
        other => return Err(Failure::invalid(format!("{other:?} is no mode of a write"))),
    })
}

#[pymethods]
impl Kv {
    #[new]
    #[pyo3(signature = (address, options=None))]
    fn new(py: Python<'_>, address: &str, options: Option<&Bound<'_, Options>>) -> PyResult<Self> {
        let options = plain(options);
        let connected = py.detach(|| options.connect_kv(address));
        Ok(Self(Held::new(connected.map_err(|failure| raised(py, failure))?)))
    }

    /// Returns the item of a key, or None.
    fn get(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Item>> {
        let key = Sent::of(key)?;
        let found = self.0.wait(py, |kv| Ok(kv.get(key.get())?.map(Found::from)))?;
        Ok(found.map(|found| found.give(py)))
    }

    /// Looks up many keys at once. Returns their items, or None, in the order of the keys.
    fn get_many(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Option<Item>>> {
        let keys = keys.iter().map(Sent::of).collect::<PyResult<Vec<_>>>()?;
        let found = self.0.wait(py, |kv| {
            let keys: Vec<&[u8]> = keys.iter().map(Sent::get).collect();
            let mut found: Vec<Option<Found>> = keys.iter().map(|_| None).collect();
            kv.get_many(&keys, |place, item| found[place] = item.map(Found::from))?;
            Ok(found)
        })?;
        Ok(found.into_iter().map(|found| found.map(|found| found.give(py))).collect())
    }

    /// Stores a value. Returns the new version of the item. `time_to_live` is in seconds; None: unlimited.
    #[pyo3(signature = (key, value, *, flags=0, time_to_live=None, mode="set"))]
    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        flags: u32,
        time_to_live: Option<f64>,
        mode: &str,
    ) -> PyResult<u64> {
        let (key, value) = (Sent::of(key)?, Sent::of(value)?);
        let lives = duration(py, time_to_live)?.unwrap_or_default();
        self.0.wait(py, |kv| {
            let write = Write::of(value.get()).flags(flags).time_to_live(lives).mode(mode_of(mode)?);
            version(kv.put(key.get(), write)?)
        })
    }

    /// Stores a value if the item still has this version. Returns the new version.
    #[pyo3(signature = (key, value, version, *, flags=0, time_to_live=None))]
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        version: u64,
        flags: u32,
        time_to_live: Option<f64>,
    ) -> PyResult<u64> {
        let (key, value) = (Sent::of(key)?, Sent::of(value)?);
        let lives = duration(py, time_to_live)?.unwrap_or_default();
        self.0.wait(py, |kv| {
            let write = Write::of(value.get()).flags(flags).time_to_live(lives);
            farcall::binding::version(kv.compare_and_swap(key.get(), version, write)?)
        })
    }

    /// Removes an item. Returns whether the key had one. If `version` is given, fails if the item has another version.
    #[pyo3(signature = (key, version=None))]
    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>, version: Option<u64>) -> PyResult<bool> {
        let key = Sent::of(key)?;
        self.0.wait(py, |kv| match farcall::binding::version(kv.delete(key.get(), version)?) {
            Ok(_) => Ok(true),
            Err(failure) if failure.code == Code::NotFound => Ok(false),
            Err(failure) => Err(failure),
        })
    }

    /// Sets the remaining time to live of an item in seconds; None: unlimited. Returns whether the key has an item.
    #[pyo3(signature = (key, time_to_live=None))]
    fn touch(&self, py: Python<'_>, key: &Bound<'_, PyAny>, time_to_live: Option<f64>) -> PyResult<bool> {
        let key = Sent::of(key)?;
        let lives = duration(py, time_to_live)?.unwrap_or_default();
        self.0.wait(py, |kv| Ok(kv.touch(key.get(), lives)?))
    }

    /// Closes the client.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py, |_| Ok(()))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
