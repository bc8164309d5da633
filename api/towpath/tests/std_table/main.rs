//! A table of cases that runs on std's sockets, over the kernel's loopback, and on ours, over that
//! of a stack. Each case notes what its calls gave; the kernel's notes are what ours must be.
//!
//! A case is written once, against `super::net`: std's in the module `kernel`, ours in `stack`.

mod facts;
#[allow(clippy::duplicate_mod, reason = "the same cases, on other sockets")]
mod kernel;
#[allow(clippy::duplicate_mod, reason = "the same cases, on other sockets")]
mod stack;

/// A test for each case of a file.
macro_rules! table {
    ($($file:ident { $($case:ident)+ })+) => { $(
        mod $file {
            $(
                #[test]
                fn $case() {
                    use crate::{kernel, stack};
                    crate::facts::compare(kernel::$file::$case, stack::$file::$case);
                }
            )+
        }
    )+ };
}

table! {
    listener {
        a_foreign_address_is_not_available
        a_port_is_given_to_one_listener
        a_listener_on_all_addresses_has_the_port_on_each
        a_port_is_free_when_its_listener_is_dropped
        a_port_is_free_while_its_connections_linger
        no_address_is_invalid_input
        a_text_that_is_no_address_is_invalid_input
        the_first_address_that_works_is_taken
        a_wildcard_is_shown_as_such
        accept_without_blocking_says_so
        an_accepted_connection_blocks
        accept_tells_the_peers_address
        incoming_keeps_the_order_of_connections
        a_clone_goes_on_when_the_listener_is_dropped
        a_handle_dropped_elsewhere_leaves_accept_waiting
        an_accepted_connection_has_the_listeners_ttl
        ttl_beyond_a_byte_is_refused
        only_v6_is_for_ipv6
        there_is_no_error_to_take
        debug_shows_the_address
        a_listener_accepts_what_connected_before
    }
    stream {
        connecting_to_nobody_is_refused
        connecting_in_time_to_nobody_is_refused
        connecting_in_no_time_is_invalid_input
        connecting_to_a_group_or_to_all_is_unreachable
        connecting_to_no_port_is_refused
        connecting_to_no_address_is_invalid_input
        connecting_tries_all_addresses
        connecting_in_time_connects
        a_refused_address_can_be_tried_again
        addresses_of_both_ends_match
        bytes_go_both_ways
        end_of_file_stays
        many_connections_echo
        a_long_transfer_is_whole
        peek_leaves_the_bytes
        peek_at_the_end_gives_nothing
        vectored_reads_fill_their_buffers
        vectored_writes_gather
        vectored_calls_take_so_many_buffers
        empty_buffers_move_nothing
        clones_write_to_one_stream
        a_clone_keeps_the_connection
        a_clone_reads_while_another_does
        a_handle_dropped_elsewhere_leaves_read_waiting
        debug_shows_both_addresses
        flush_has_nothing_to_do
        a_blocked_read_gets_what_comes
        a_blocked_write_goes_on_when_the_peer_reads
    }
    shutdown {
        shut_for_writing_the_peer_sees_the_end
        shut_for_writing_nothing_can_be_written
        shut_for_reading_what_came_is_read
        shut_twice_is_as_once
        shut_after_both_ended_is_not_connected
        shut_for_reading_a_blocked_read_ends
        shut_for_both_a_blocked_read_ends
        shut_for_writing_a_blocked_write_ends
        shut_by_a_clone_a_read_ends
        half_a_connection_answers
        writing_to_an_ended_peer_is_a_broken_pipe
        bytes_left_unread_reset_the_peer
        a_reset_is_told_once
        a_reset_can_be_taken
        linger_of_no_time_resets
        linger_keeps_the_bytes
    }
    options {
        read_timeouts_are_kept
        write_timeouts_are_kept
        no_time_is_an_invalid_timeout
        a_read_that_timed_out_would_block
        a_read_before_its_timeout_succeeds
        a_write_that_timed_out_would_block
        timeouts_are_the_clones_too
        nodelay_is_kept
        ttl_is_kept
        reads_without_blocking_say_so
        writes_without_blocking_say_so
        without_blocking_is_the_clones_too
        linger_is_kept
        keepalive_is_kept
        buffer_sizes_are_doubled
        congestion_is_chosen_by_name
    }
    signals {
        a_handler_interrupts_a_read
        a_handler_interrupts_a_read_with_a_timeout
        a_handler_interrupts_a_receive
        exact_reads_go_on_after_a_handler
        accept_goes_on_after_a_handler
    }
    udp {
        a_foreign_address_is_not_available
        a_port_is_given_to_one_socket
        no_address_is_invalid_input
        datagrams_go_both_ways
        datagrams_keep_their_order
        datagrams_without_bytes_arrive
        a_datagram_longer_than_the_buffer_is_cut
        the_longest_datagram_arrives
        longer_datagrams_are_refused
        peek_leaves_the_datagram
        sending_without_a_peer_asks_for_an_address
        a_connected_socket_has_a_peer
        a_connected_socket_hears_its_peer_alone
        a_connected_socket_knows_its_address
        a_connected_socket_sends_elsewhere_too
        a_socket_connects_again
        a_refused_datagram_is_told_when_connected
        a_refused_datagram_can_be_taken
        a_refused_datagram_is_not_told_otherwise
        port_0_is_no_destination
        ipv6_is_no_destination_of_ipv4
        broadcasts_need_permission
        a_clone_receives_too
        a_blocked_receive_gets_what_comes
        debug_shows_the_address
    }
    udp_options {
        timeouts_are_kept
        no_time_is_an_invalid_timeout
        a_receive_that_timed_out_would_block
        receiving_without_blocking_says_so
        broadcast_is_kept
        ttl_is_kept
        multicast_ttl_is_kept
        multicast_loop_is_kept
        multicast_of_ipv6_is_not_for_ipv4
        groups_are_joined_once
        only_groups_are_joined
        there_is_no_error_to_take
        buffer_sizes_are_doubled
    }
}

mod ipv6 {
    macro_rules! table_of_ipv6 {
        ($($case:ident)+) => { $(
            #[test]
            fn $case() {
                use crate::{kernel, stack};
                if crate::facts::has_ipv6() {
                    crate::facts::compare(kernel::ipv6::$case, stack::ipv6::$case);
                }
            }
        )+ };
    }

    table_of_ipv6! {
        bytes_go_both_ways
        connecting_to_nobody_is_refused
        a_wildcard_listener_accepts_ipv4
        a_listener_on_one_address_does_not_accept_ipv4
        only_v6_follows_the_address
        a_mapped_address_reaches_ipv4
        debug_shows_the_address
        ttl_is_that_of_ipv4
        datagrams_go_both_ways
        a_wildcard_socket_receives_from_ipv4
        a_wildcard_socket_sends_to_ipv4
        a_socket_on_one_address_does_not_reach_ipv4
        a_refused_datagram_is_told_when_connected
        groups_are_joined_once
        multicast_loop_is_kept
    }
}
