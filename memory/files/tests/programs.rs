//! Programs that verify the data that they write, on a mounted file system: SQLite and fio, if they are installed
//! (Debian: apt-get install sqlite3 fio). Needs root and /dev/fuse.

mod support;

use std::io::ErrorKind;
use std::process::{Command, Output};

use support::Mounted;

/// Returns the output of a program; if it is not installed, prints the reason and returns `None`.
fn run(mounted: &Mounted, program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).current_dir(&mounted.dir).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("SKIPPED: there is no {program}; Debian: apt-get install {program}");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

#[test]
fn keeps_a_database_consistent() {
    let Some(mounted) = Mounted::new("sqlite") else { return };
    // A write-ahead log is mapped; a rollback journal is created, truncated and removed repeatedly.
    for mode in ["wal", "delete", "truncate"] {
        let fill = "WITH RECURSIVE numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers LIMIT 5000) \
                    INSERT INTO t SELECT number, randomblob(number % 700) FROM numbers;";
        let script = format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t(number INTEGER, bytes BLOB); BEGIN; {fill} COMMIT; \
             CREATE INDEX i ON t(bytes); DELETE FROM t WHERE number % 3 = 0; VACUUM; {fill} \
             BEGIN; DELETE FROM t; ROLLBACK; PRAGMA integrity_check; SELECT count(*) FROM t;"
        );
        let file = format!("{mode}.db");
        let Some(ready_line) = run(&mounted, "sqlite3", &[&file, &script]) else { break };
        let text = String::from_utf8_lossy(&ready_line.stdout);
        // 5,000 minus a third, plus 5,000.
        assert!(ready_line.status.success() && text.ends_with("ok\n8334\n"), "{mode}: {ready_line:?}");
        let again =
            run(&mounted, "sqlite3", &[&file, "PRAGMA integrity_check; SELECT count(*) FROM t;"]).unwrap();
        assert_eq!(String::from_utf8_lossy(&again.stdout), "ok\n8334\n", "{mode}: {again:?}");
    }
    mounted.unmount();
}

#[test]
fn verifies_data_written_by_fio() {
    let Some(mounted) = Mounted::new("fio") else { return };
    let every = ["--size=8M", "--verify=crc32c", "--verify_fatal=1", "--randseed=5", "--allrandrepeat=1"];
    let jobs = [
        &["--name=random", "--rw=randwrite", "--bsrange=512-64k", "--ioengine=psync"][..],
        &["--name=direct", "--rw=randrw", "--bs=4k", "--direct=1", "--ioengine=psync"],
        &[
            "--name=asynchronous",
            "--rw=randwrite",
            "--bs=16k",
            "--ioengine=libaio",
            "--direct=1",
            "--iodepth=16",
        ],
        &["--name=mapped", "--rw=randwrite", "--bs=4k", "--ioengine=mmap"],
    ];
    for job in jobs {
        let Some(ready_line) = run(&mounted, "fio", &[job, &every[..]].concat()) else { break };
        assert!(ready_line.status.success(), "{job:?}: {ready_line:?}");
    }
    mounted.unmount();
}
