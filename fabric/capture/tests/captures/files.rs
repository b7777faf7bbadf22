//! Merging of the files of several processes.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use farcall_capture::{CaptureSource, Direction, Recorder, SNAPLEN_BYTES, merge};
use farcall_wire::codec::icrc::Flow;

use crate::support::read;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("farcall-capture-files-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn record(recorder: &Recorder, way: CaptureSource, mark: u8) {
    let flow = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 4791, dst_port: 4791 };
    recorder.batch().datagram(way, Direction::In, &flow, &[mark; 20]);
}

fn files(folder: &PathBuf) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn merges_packets_of_all_processes_in_order_of_time() {
    let folder = folder("order");
    let recorders = [0, 1, 2].map(|_| Recorder::create(&folder, SNAPLEN_BYTES).unwrap());
    for mark in 0..30 {
        let way = if mark % 2 == 0 { CaptureSource::SharedMemory } else { CaptureSource::RoCE };
        record(&recorders[mark as usize % 3], way, mark);
    }
    // Files that are not captures are omitted, and the file of a killed process is read up to its last complete block.
    fs::write(folder.join("stranger"), "no capture").unwrap();
    fs::write(folder.join("empty"), "").unwrap();
    let cut = files(&folder).into_iter().find(|file| file.extension().is_some()).unwrap();
    let whole_bytes = fs::metadata(&cut).unwrap().len();
    File::options().write(true).open(&cut).unwrap().set_len(whole_bytes - 3).unwrap();
    assert_eq!(fs::metadata(&cut).unwrap().permissions().mode() & 0o777, 0o600);

    let whole = folder.join("whole.merged");
    let parts = files(&folder);
    let merged = merge(&parts, "comment", &mut File::create(&whole).unwrap()).unwrap();
    assert_eq!((merged.processes, merged.packets, merged.dropped, merged.left_out), (3, 29, 0, 0));
    let capture = read(&whole);
    assert_eq!(capture.interfaces.len(), 6);
    assert!(capture.frames.is_sorted_by_key(|frame| frame.ns));
    let marks: Vec<u8> = capture.frames.iter().map(|frame| frame.bytes[50]).collect();
    let expected: Vec<u8> = (0..30).filter(|mark| marks.contains(mark)).collect();
    assert_eq!((marks.len(), &marks), (29, &expected));
    for frame in &capture.frames {
        let is_memory = capture.interfaces[frame.interface].name.starts_with("shared memory");
        assert_eq!(is_memory, frame.bytes[50] % 2 == 0);
    }
    let received: u64 = capture.interfaces.iter().map(|interface| interface.received).sum();
    assert_eq!(received, 29);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn writes_recorded_packets_to_the_file_at_once() {
    let folder = folder("at-once");
    let recorder = Recorder::create(&folder, SNAPLEN_BYTES).unwrap();
    let [file] = &files(&folder)[..] else { panic!("one file") };
    for count in 0..3 {
        // A file is readable without merging, and while its process runs.
        assert_eq!(read(file).frames.len(), count);
        record(&recorder, CaptureSource::RoCE, 1);
    }
    fs::remove_dir_all(&folder).unwrap();
}
