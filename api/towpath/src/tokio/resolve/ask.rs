//! Sends DNS queries to the nameservers, over sockets of the stack.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use ::tokio::io::Interest;
use ::tokio::time::timeout;
use towpath_dns::{Attempt, Conf, DATAGRAM_MAX, DnsAnswer, Inquiry, Protocol, Question};

use crate::net;
use crate::net::address::unspecified;
use crate::shared::SharedStack;
use crate::tokio::{TcpStream, UdpSocket};

/// Sends all `questions` to the nameservers until they are answered. An element of the result is
/// `None` if no nameserver answered that question.
pub(super) async fn ask(
    shared: &Arc<SharedStack>,
    conf: &Conf,
    questions: &[Question],
) -> Vec<Option<DnsAnswer>> {
    let mut inquiry = Inquiry::new(conf, questions, random);
    while let Some(attempt) = inquiry.next_attempt() {
        let carried_out = async {
            match attempt.protocol {
                Protocol::Udp => ask_by_udp(shared, &attempt, &mut inquiry).await,
                Protocol::Tcp => ask_by_tcp(shared, &attempt, &mut inquiry).await,
            }
        };
        // Ignore an error or timeout, and try the next nameserver.
        let _ = timeout(attempt.timeout, carried_out).await;
    }
    inquiry.into_answers()
}

async fn ask_by_udp(
    shared: &Arc<SharedStack>,
    attempt: &Attempt,
    inquiry: &mut Inquiry<'_>,
) -> io::Result<()> {
    let socket = net::UdpSocket::bind_on(shared, unspecified(&attempt.server))?;
    // Report ICMP errors, so that an unreachable nameserver fails at once instead of after the
    // timeout.
    socket.report_unreachable()?;
    socket.connect_to(attempt.server)?;
    let socket = UdpSocket::from_std(socket)?;
    for message in &attempt.messages {
        socket.send(message).await?;
    }
    let mut bytes = vec![0; DATAGRAM_MAX];
    loop {
        let len = socket.recv(&mut bytes).await?;
        if inquiry.on_message(&bytes[..len]) {
            return Ok(());
        }
    }
}

async fn ask_by_tcp(
    shared: &Arc<SharedStack>,
    attempt: &Attempt,
    inquiry: &mut Inquiry<'_>,
) -> io::Result<()> {
    let stream = TcpStream::connect_to(shared, attempt.server).await?;
    for message in &attempt.messages {
        // Send the length and the message in one segment, because some servers read only the first
        // segment.
        send(&stream, &[&(message.len() as u16).to_be_bytes()[..], message].concat()).await?;
        let mut len = [0; 2];
        recv(&stream, &mut len).await?;
        let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
        recv(&stream, &mut bytes).await?;
        if inquiry.on_message(&bytes) {
            break;
        }
    }
    Ok(())
}

async fn send(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = stream.async_io(Interest::WRITABLE, || stream.try_write(bytes)).await?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

async fn recv(stream: &TcpStream, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.async_io(Interest::READABLE, || stream.try_read(bytes)).await? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => bytes = &mut bytes[len..],
        }
    }
    Ok(())
}

/// Returns a random number from the kernel, so that an attacker cannot guess it and forge answers.
fn random() -> u16 {
    let mut bytes = [0; 2];
    // SAFETY: the address and length are those of `bytes`.
    while unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } < 0 {
        // Try again: a signal arrived before the kernel had initialized its random number
        // generator.
    }
    u16::from_ne_bytes(bytes)
}
