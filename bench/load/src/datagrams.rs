//! Datagrams to the server, and back or not.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::tally::Tally;

/// Who has not come back until then is lost. Longer than any that comes back takes on one machine.
const LOST: Duration = Duration::from_millis(100);
/// Bytes of a datagram's number, which it begins with.
const NUMBER: usize = 8;

/// A datagram for each of `window` places, and the next one when it is back or lost.
pub fn echo(to: SocketAddr, window: usize, len: usize, time: Duration) -> Result<Value> {
    ensure!(window > 0 && len >= NUMBER, "a window, and datagrams of at least {NUMBER} bytes");
    let socket = socket(to)?;
    let mut bytes = vec![0; len];
    let mut tally = Tally::new()?;
    let start = Instant::now();
    let mut places: Vec<_> = (0..window as u64).map(|number| (number, start)).collect();
    for place in &mut places {
        send(&socket, place, &mut bytes)?;
    }
    let mut lost = 0_u64;
    while start.elapsed() < time {
        let Some(come) = receive(&socket, &mut bytes)? else {
            for place in places.iter_mut().filter(|(_, sent)| sent.elapsed() >= LOST) {
                lost += 1;
                place.0 += window as u64;
                send(&socket, place, &mut bytes)?;
            }
            continue;
        };
        ensure!(come == len, "{come} bytes of {len} came back");
        let number = u64::from_be_bytes(bytes[..NUMBER].try_into()?);
        let place = &mut places[number as usize % window];
        // Another number is one that was given up.
        if place.0 == number {
            tally.add(place.1.elapsed());
            place.0 += window as u64;
            send(&socket, place, &mut bytes)?;
        }
    }
    let mut said = tally.json(start.elapsed());
    said["lost"] = lost.into();
    Ok(said)
}

/// Datagrams as fast as they can be sent.
pub fn cast(to: SocketAddr, len: usize, time: Duration) -> Result<Value> {
    ensure!(len > 1, "one byte asks for the count");
    let socket = socket(SocketAddr::new(to.ip(), to.port() + 1))?;
    let bytes = vec![0; len];
    let before = counted(&socket)?;
    let start = Instant::now();
    let mut sent = 0_u64;
    while start.elapsed() < time {
        if hand_over(&socket, &bytes)? {
            sent += 1;
        }
    }
    let took = start.elapsed();
    let received = counted(&socket)? - before;
    let a_second = |count: u64| count as f64 / took.as_secs_f64();
    Ok(json!({ "received": a_second(received), "sent": a_second(sent) }))
}

/// How many the server has counted. What was sent before is among them, unless it was lost.
fn counted(socket: &UdpSocket) -> Result<u64> {
    const TIMES: u32 = 50;
    let mut count = [0; NUMBER];
    for _ in 0..TIMES {
        hand_over(socket, &[0])?;
        if receive(socket, &mut count)? == Some(NUMBER) {
            return Ok(u64::from_be_bytes(count));
        }
    }
    bail!("the server does not say how many datagrams it got")
}

fn socket(to: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
    Ok(socket)
}

fn send(socket: &UdpSocket, place: &mut (u64, Instant), bytes: &mut [u8]) -> Result<()> {
    bytes[..NUMBER].copy_from_slice(&place.0.to_be_bytes());
    place.1 = Instant::now();
    hand_over(socket, bytes)?;
    Ok(())
}

/// False: there is no room for it, and it is lost.
fn hand_over(socket: &UdpSocket, bytes: &[u8]) -> Result<bool> {
    match socket.send(bytes) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(NO_ROOM) => Ok(false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// ENOBUFS: the queue of a device is full.
const NO_ROOM: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

/// None: nothing came in time.
fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Result<Option<usize>> {
    match socket.recv(bytes) {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}
