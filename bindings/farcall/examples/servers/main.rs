//! The servers of [`servers`], until standard input ends; prints their three addresses.

mod servers;

use std::io::Read;

fn main() -> std::io::Result<()> {
    let servers = servers::Servers::start();
    println!("{}", servers.addresses().join(" "));
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
