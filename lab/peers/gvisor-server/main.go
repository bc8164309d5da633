// A server on gVisor's netstack:
//
//	gvisor-server DEVICE ADDRESS/LENGTH PORT
//
// DEVICE is one that the kernel has no address for, the end of a veth pair for instance. The server offers what
// lab/load/src/serve.rs says, to goroutines with gVisor's adapters for Go's net package.
package main

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const nic = 1

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gvisor-server:", err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) != 3 {
		return fmt.Errorf("usage: gvisor-server DEVICE ADDRESS/LENGTH PORT")
	}
	prefix, err := netip.ParsePrefix(words[1])
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(words[2], 10, 16)
	if err != nil {
		return err
	}
	host, err := newHost(words[0], prefix)
	if err != nil {
		return err
	}
	return serve(host, uint16(port))
}

func newHost(device string, prefix netip.Prefix) (*stack.Stack, error) {
	link, err := openLink(device)
	if err != nil {
		return nil, err
	}
	host := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{
			tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4,
		},
	})
	if err := setOptions(host); err != nil {
		return nil, err
	}
	if err := host.CreateNIC(nic, link); err != nil {
		return nil, fmt.Errorf("%s: %s", device, err)
	}
	address := tcpip.ProtocolAddress{
		Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{
			Address:   tcpip.AddrFrom4(prefix.Addr().As4()),
			PrefixLen: prefix.Bits(),
		},
	}
	if err := host.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("%s: %s", prefix, err)
	}
	host.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return host, nil
}

// As the other sides have them: CUBIC, SACK, and buffers that grow to some megabytes.
func setOptions(host *stack.Stack) error {
	sack, congestion := tcpip.TCPSACKEnabled(true), tcpip.CongestionControlOption("cubic")
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
	options := []tcpip.SettableTransportProtocolOption{
		&sack, &congestion, &moderate, &receive, &send,
	}
	for _, option := range options {
		if err := host.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("%T: %s", option, err)
		}
	}
	return nil
}
