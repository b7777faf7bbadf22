//! Buffers that are passed between Python and the library.

use std::ffi::{c_int, c_void};

use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView};

/// Bytes that the library uses without the GIL, while Python code runs. `bytes` objects are borrowed. Other buffers
/// are copied, because Python code may change them.
pub(crate) enum Sent {
    Borrowed(PyBackedBytes),
    Copied(Vec<u8>),
}

impl Sent {
    pub fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        match given.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self::Borrowed(bytes.clone().into())),
            Err(_) => Ok(Self::Copied(PyBuffer::<u8>::get(given)?.to_vec(given.py())?)),
        }
    }

    pub fn get(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

/// A contiguous Python buffer, in a thread that holds the GIL.
pub(crate) struct Room<'py> {
    buffer: PyBuffer<u8>,
    py: Python<'py>,
}

impl<'py> Room<'py> {
    pub fn of(given: &Bound<'py, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(given)?;
        if !buffer.is_c_contiguous() {
            return Err(pyo3::exceptions::PyBufferError::new_err(
                "the bytes of the buffer are not in one piece",
            ));
        }
        Ok(Self { buffer, py: given.py() })
    }

    /// Calls `f` with the bytes of the buffer. `f` must not run Python code.
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        let (start, len_bytes) = (self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes());
        let _held = self.py;
        if len_bytes == 0 {
            return f(&[]);
        }
        // SAFETY: the exporter keeps these `len_bytes` bytes valid until `buffer` is released (buffer protocol), and
        // `of` checked that they are contiguous. This thread holds the GIL (`py`), which `f` does not release, so no
        // Python code changes them during the call.
        f(unsafe { std::slice::from_raw_parts(start, len_bytes) })
    }

    /// Calls `f` with the bytes of the buffer to write them. `f` must not run Python code.
    pub fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> PyResult<R> {
        if self.buffer.readonly() {
            return Err(pyo3::exceptions::PyBufferError::new_err("the buffer is read-only"));
        }
        let (start, len_bytes) = (self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes());
        if len_bytes == 0 {
            return Ok(f(&mut []));
        }
        // SAFETY: the exporter keeps these `len_bytes` bytes valid until `buffer` is released (buffer protocol), and
        // `of` checked that they are contiguous. The buffer is not read-only. This thread holds the GIL (`py`), which
        // `f` does not release, so no Python code reads or changes them during the call.
        Ok(f(unsafe { std::slice::from_raw_parts_mut(start, len_bytes) }))
    }
}

/// Result of a call, exported to Python without a copy.
#[pyclass(frozen, module = "farcall")]
struct Buffer(Vec<u8>);

#[pymethods]
impl Buffer {
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the interpreter passes a `view` that may be filled. The argument 1 makes it read-only. The view
        // holds a reference to this object, so the bytes, which never change or move, are valid as long as the view.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Returns `bytes` as a read-only `memoryview` without a copy.
pub(crate) fn lent(py: Python<'_>, bytes: Vec<u8>) -> PyResult<Py<PyAny>> {
    let buffer = Bound::new(py, Buffer(bytes))?;
    Ok(PyMemoryView::from(buffer.as_any())?.into_any().unbind())
}
