//! A process that runs out of descriptors. The limit affects the whole process, so this file has a
//! single test.

mod world;

const OVER: world::Over = world::Over::Memory;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::mpsc;

use rustix::net::{AddressFamily, SocketType, connect, socket};
use towpath_gateway::{ForwardProtocol, Notice};
use towpath_stack::Linger;
use world::{PATIENCE, World};

#[test]
fn a_client_is_refused_when_no_descriptor_is_left() {
    let mut world = World::new();
    let (tell, told) = mpsc::channel();
    world.gateway.borrow_mut().on_notice(move |notice| tell.send(notice).unwrap());
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let client = || socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let [first, second, third] = [client(), client(), client()].map(|client| {
        let stream = TcpStream::from(client);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    });
    connect(&first, &addr).unwrap();
    let (sock, _) = world.accept(listener);
    let taken: Vec<_> = std::iter::from_fn(|| rustix::io::dup(first.as_fd()).ok()).collect();
    assert!(!taken.is_empty());
    connect(&second, &addr).unwrap();
    world.until("a refusal", |world| (world.counter("tcp_flows_full") == 1).then_some(()));
    assert!((&second).read(&mut [0; 1]).is_err(), "a reset");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let Ok(Notice::ClientsRefused { open: 1, descriptors, .. }) = told.try_recv() else {
        panic!("the user is told");
    };
    assert_eq!(descriptors, limit);
    // The existing connection continues, and the next client is accepted once a descriptor is free.
    (&first).write_all(b"hi").unwrap();
    assert_eq!(world.read_exact(sock, 2), b"hi");
    drop(taken);
    connect(&third, &addr).unwrap();
    let (sock, _) = world.accept(listener);
    world.close(sock, Linger::Default);
    world.until("the end", |world| (world.counter("tcp_accepted") == 2).then_some(()));
    assert_eq!(world.counter("tcp_flows_full"), 1);
}
