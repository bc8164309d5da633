//! Counters of a gateway.

towpath_pool::counters! {
    /// Event counts since the gateway was created.
    #[non_exhaustive]
    pub struct Counters {
        /// TCP flows opened by the program whose connection on the host succeeded.
        tcp_connected,
        /// TCP flows opened by the program whose connection on the host was refused or failed.
        tcp_refused,
        /// TCP connections of clients accepted on forwarded ports.
        tcp_accepted,
        /// TCP connections accepted on forwarded ports that the program then refused.
        tcp_accepted_refused,
        /// TCP flows that ended by a FIN in both directions.
        tcp_finished,
        /// TCP flows that were reset by the program or by the host's peer.
        tcp_reset,
        /// TCP flows not created because of `TCP_FLOWS_MAX` or the descriptor limit: clients that
        /// were refused, and SYNs of the program that were not answered.
        tcp_flows_full,
        /// TCP flows not created because a client had reached the per-client limit. Not included in
        /// `tcp_flows_full`.
        tcp_client_full,
        /// FIFOs that got the small size because `FIFOS_LARGE_MAX` large ones were in use.
        tcp_fifos_small,
        /// SYNs of the program that were dropped before the connection on the host was established.
        /// The program stopped retransmitting, or reset the connection.
        tcp_forgotten,
        /// SYNs of the program that were evicted before the connection on the host was established.
        /// The number of pending SYNs had reached the inner stack's `pending_max`.
        tcp_connecting_evicted,
        /// Bytes of TCP flows sent from the program to the host.
        tcp_bytes_to_host,
        /// Bytes of TCP flows sent from the host to the program.
        tcp_bytes_to_program,
        /// Accepted connections that waited until another gateway had delivered earlier connections
        /// of the same client to the program.
        accept_waited,
        /// Pauses in accepting connections because descriptors or flows ran out.
        accept_paused,
        /// UDP flows created.
        udp_flows,
        /// UDP flows ended by idle timeout.
        udp_expired,
        /// Unanswered UDP flows of the program evicted to make room.
        udp_evicted,
        /// Answered UDP flows of the program evicted because no unanswered ones were left.
        udp_answered_evicted,
        /// UDP flows of published ports' clients, unanswered by the program, evicted to make room.
        udp_clients_evicted,
        /// UDP flows of published ports' clients, answered by the program, evicted because no
        /// unanswered ones were left.
        udp_clients_answered_evicted,
        /// Datagrams of published ports' clients that the program refused because the port was
        /// closed.
        udp_clients_refused,
        /// Datagrams from the program to the host, without DNS queries to the forwarder.
        udp_to_host,
        /// Datagrams from the host to the program, without answers of the forwarder.
        udp_to_program,
        /// Datagrams in `udp_to_program` from a peer's port that the program had not sent to.
        udp_from_other_ports,
        /// Datagrams lost in either direction, because the host's socket was full or failed, or
        /// because the inner stack could not send them.
        udp_dropped,
        /// DNS queries that the program sent to the forwarder over UDP.
        dns_questions,
        /// DNS queries that repeated a query still in progress.
        dns_repeated,
        /// DNS answers passed to the program.
        dns_answers,
        /// DNS queries sent again, usually to the next nameserver, because the previous attempt
        /// failed or timed out.
        dns_next,
        /// DNS queries that no nameserver answered.
        dns_unanswered,
        /// DNS queries evicted because `DNS_QUERIES_MAX` was reached.
        dns_displaced,
        /// Dropped datagrams that the program sent to the forwarder and that are no DNS queries.
        dns_malformed,
        /// Dropped datagrams received on the socket of a DNS query that do not answer the query.
        dns_mismatched,
        /// UDP flows and pings ended because their source address was removed from the host.
        address_lost,
        /// Unanswered UDP flows, pings and connecting TCP flows that were moved to a new source
        /// address after the host's addresses changed.
        source_moved,
        /// Flows that were refused because they came from the gateway's own sockets: routing leads
        /// back into the gateway.
        loops_refused,
        /// Errors reported by the host that were passed to the program as ICMP errors.
        icmp_errors,
        /// Errors reported by the host that were not passed to the program, because they concern a
        /// multicast address or `ERRORS_MAX` was reached.
        icmp_errors_dropped,
        /// Echo requests of the program passed to the host.
        echo_requests,
        /// Echo replies passed to the program.
        echo_replies,
        /// Echo requests dropped because the process may not send them
        /// (`net.ipv4.ping_group_range`).
        echo_not_permitted,
        /// Echo requests of the program dropped for another reason.
        echo_dropped,
        /// Unanswered echo flows evicted to make room.
        echo_evicted,
        /// Answered echo flows evicted because no unanswered ones were left.
        echo_answered_evicted,
    }
}
