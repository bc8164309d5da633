//! Counters of a gateway.

towpath_pool::counters! {
    /// Event counts since the gateway was created.
    #[non_exhaustive]
    pub struct Counters {
        /// Flows opened by the program that the host connected.
        tcp_connected,
        /// Flows opened by the program that the host refused or could not reach.
        tcp_refused,
        /// Connections accepted on forwarded ports.
        tcp_accepted,
        /// Connections accepted on forwarded ports that the program refused.
        tcp_accepted_refused,
        /// Flows closed in both directions.
        tcp_finished,
        /// Flows reset by either side.
        tcp_reset,
        /// Flows not created because of `TCP_FLOWS_MAX` or the descriptor limit: refused clients,
        /// and unanswered SYNs of the program.
        tcp_flows_full,
        /// Flows not created because a client had reached the per-client limit; not included in
        /// `tcp_flows_full`.
        tcp_client_full,
        /// FIFOs that were small because `FIFOS_LARGE_MAX` large ones were in use.
        tcp_fifos_small,
        /// SYNs of the program dropped before the host connected, because the program stopped
        /// retransmitting or reset the connection.
        tcp_forgotten,
        /// SYNs of the program evicted before the host connected, because the inner stack's
        /// `pending_max` was reached.
        tcp_connecting_evicted,
        /// Bytes sent from the program to the host.
        tcp_bytes_to_host,
        /// Bytes sent from the host to the program.
        tcp_bytes_to_program,
        /// Connections that waited until another gateway had delivered earlier connections of the
        /// same client.
        accept_waited,
        /// Pauses in accepting because descriptors or flows ran out.
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
        /// Datagrams lost in either direction, because the host's socket was full or failed or the
        /// inner stack could not send.
        udp_dropped,
        /// DNS queries of the program to the forwarder over UDP.
        dns_questions,
        /// Queries that repeated one already in progress.
        dns_repeated,
        /// Answers passed to the program.
        dns_answers,
        /// Queries repeated, usually to the next nameserver, because the previous one failed or
        /// timed out.
        dns_next,
        /// Queries that no nameserver answered.
        dns_unanswered,
        /// Queries evicted because of `DNS_QUERIES_MAX`.
        dns_displaced,
        /// Datagrams to the forwarder that are not DNS queries, dropped.
        dns_malformed,
        /// Datagrams to a query's socket that do not answer the query, dropped.
        dns_mismatched,
        /// UDP flows and pings ended because the host lost their source address.
        address_lost,
        /// Unanswered UDP flows, pings and connecting TCP flows moved to the host's new source
        /// address.
        source_moved,
        /// Flows that came from the gateway's own sockets, because they were routed back to it, and
        /// were refused.
        loops_refused,
        /// Errors of the host passed to the program as ICMP.
        icmp_errors,
        /// Errors not passed on, because they concern a group address or because of `ERRORS_MAX`.
        icmp_errors_dropped,
        /// Echo requests passed to the host.
        echo_requests,
        /// Echo replies passed to the program.
        echo_replies,
        /// Echo requests dropped because the process may not send them
        /// (`net.ipv4.ping_group_range`).
        echo_not_permitted,
        /// Echo requests dropped for another reason.
        echo_dropped,
        /// Unanswered echo flows evicted to make room.
        echo_evicted,
        /// Answered echo flows evicted because no unanswered ones were left.
        echo_answered_evicted,
    }
}
