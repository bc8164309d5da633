//! Counters of a gateway.

towpath_pool::counters! {
    /// Counts since the start.
    #[non_exhaustive]
    pub struct Counters {
        /// Flows that the program opened and the host connected.
        tcp_connected,
        /// Flows that the program opened and the host refused or could not reach.
        tcp_refused,
        /// Connections taken from forwarded ports.
        tcp_accepted,
        /// Connections taken from forwarded ports that the program refused.
        tcp_accepted_refused,
        /// Flows that ended in both directions.
        tcp_finished,
        /// Flows that either side reset.
        tcp_reset,
        /// Flows not made because of `TCP_FLOWS_MAX` or descriptors: clients that were refused, and
        /// SYNs of the program that were not answered.
        tcp_flows_full,
        /// Flows not made because a client had as many TCP flows as it may have: as
        /// `tcp_flows_full`, which does not count these.
        tcp_client_full,
        /// Directions of flows that got little memory because of `FIFOS_LARGE_MAX`.
        tcp_fifos_small,
        /// SYNs of the program given up before the host had connected: the program did not repeat
        /// them for long, or reset the connection.
        tcp_forgotten,
        /// SYNs of the program given up before the host had connected, to make room for another
        /// one: `pending_max` of the inner stack was reached.
        tcp_connecting_evicted,
        /// Bytes from the program to the host.
        tcp_bytes_to_host,
        /// Bytes from the host to the program.
        tcp_bytes_to_program,
        /// Times that a connection waited for those of its client which another gateway had.
        accept_waited,
        /// Times that accepting paused because descriptors or flows ran out.
        accept_paused,
        /// UDP flows made.
        udp_flows,
        /// UDP flows ended for being idle.
        udp_expired,
        /// UDP flows of the program's making that the peer had not answered, ended to make room.
        udp_evicted,
        /// The same that the peer had answered, when no others were left.
        udp_answered_evicted,
        /// UDP flows of clients of published ports that the program had not answered, ended to make
        /// room.
        udp_clients_evicted,
        /// The same that the program had answered, when no others were left.
        udp_clients_answered_evicted,
        /// Datagrams of clients of published ports that the program refused: it does not listen
        /// there.
        udp_clients_refused,
        /// Datagrams from the program to the host, those to the forwarder of DNS apart.
        udp_to_host,
        /// Datagrams from the host to the program, answers of the forwarder apart.
        udp_to_program,
        /// Datagrams in `udp_to_program` from a port of a peer that the program did not write to.
        udp_from_other_ports,
        /// Datagrams lost in either direction: the host's socket was full or gave an error, or the
        /// inner stack could not send.
        udp_dropped,
        /// Questions of the program to the forwarder of DNS, by UDP.
        dns_questions,
        /// Questions that repeated one which a nameserver was being asked.
        dns_repeated,
        /// Answers passed to the program.
        dns_answers,
        /// Questions asked again, mostly of the next nameserver: the one before did not help, or
        /// not in time.
        dns_next,
        /// Questions that no nameserver answered.
        dns_unanswered,
        /// Questions given up because of `DNS_QUERIES_MAX`.
        dns_displaced,
        /// Datagrams of the program to the forwarder that are no question, dropped.
        dns_malformed,
        /// Datagrams that came to a question's socket and do not answer it, dropped.
        dns_mismatched,
        /// UDP flows and pings ended for being from an address that the host lost.
        address_lost,
        /// UDP flows, pings and connections being made that nobody answered, moved to the address
        /// from which the host would send by then.
        source_moved,
        /// Flows of the gateway's own sockets that a route of the host led back to it, refused.
        loops_refused,
        /// Errors of the host passed to the program as ICMP.
        icmp_errors,
        /// Errors not passed on: about a group, or because of `ERRORS_MAX`.
        icmp_errors_dropped,
        /// Echo requests passed to the host.
        echo_requests,
        /// Echo replies passed to the program.
        echo_replies,
        /// Echo requests dropped: this process may not send them (`net.ipv4.ping_group_range`).
        echo_not_permitted,
        /// Echo requests lost for another reason.
        echo_dropped,
        /// Echo flows that the peer had not answered, ended to make room.
        echo_evicted,
        /// The same that the peer had answered, when no others were left.
        echo_answered_evicted,
    }
}
