// What a UDP datagram costs gVisor's netstack from the socket's call to a device that drops it: the peer of
// lab/packets/src/write.rs.
//
// It is called, and says what it measured, as lab/measure has it: MILLISECONDS [PART] or NUMBERx [PART], and for each
// case its name, ns, allocations and bytes allocated a packet, and a word about what was made, with tabs between them.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	nic  = tcpip.NICID(1)
	port = 8080
	// The longest payload in bytes; each of the others has half as many, and the last one none.
	longest = 2048
)

// What the socket sends from and to: the stack is told not to keep what it sends to itself.
var address = tcpip.AddrFrom4([4]byte{1, 1, 1, 1})

// A device that takes everything and sends it nowhere.
type null struct {
	capabilities stack.LinkEndpointCapabilities
	taken        uint64
	// Where the next packet is copied to, if anywhere.
	kept *[]byte
}

func (*null) MTU() uint32                                    { return math.MaxUint32 }
func (*null) SetMTU(uint32)                                  {}
func (*null) MaxHeaderLength() uint16                        { return 0 }
func (*null) LinkAddress() tcpip.LinkAddress                 { return "" }
func (*null) SetLinkAddress(tcpip.LinkAddress)               {}
func (n *null) Capabilities() stack.LinkEndpointCapabilities { return n.capabilities }
func (*null) Attach(stack.NetworkDispatcher)                 {}
func (*null) IsAttached() bool                               { return true }
func (*null) Wait()                                          {}
func (*null) ARPHardwareType() header.ARPHardwareType        { return header.ARPHardwareNone }
func (*null) AddHeader(*stack.PacketBuffer)                  {}
func (*null) ParseHeader(*stack.PacketBuffer) bool           { return true }
func (*null) Close()                                         {}
func (*null) SetOnCloseAction(func())                        {}

func (n *null) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	count := packets.Len()
	n.taken += uint64(count)
	if n.kept != nil {
		for _, packet := range packets.AsSlice() {
			view := packet.ToView()
			*n.kept = bytes.Clone(view.AsSlice())
			view.Release()
		}
		n.kept = nil
	}
	return count, nil
}

// A stack with a connected socket.
type sender struct {
	device   null
	socket   tcpip.Endpoint
	payload  []byte
	reader   bytes.Reader
	sent     uint64
	offloads bool
}

func newSender(payload []byte, offloads bool) (*sender, error) {
	s := &sender{payload: payload, offloads: offloads}
	if offloads {
		s.device.capabilities = stack.CapabilityTXChecksumOffload | stack.CapabilityRXChecksumOffload
	}
	host := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{udp.NewProtocol},
	})
	if err := host.CreateNIC(nic, ethernet.New(&s.device)); err != nil {
		return nil, errors.New(err.String())
	}
	with := address.WithPrefix()
	ours := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: with}
	if err := host.AddProtocolAddress(nic, ours, stack.AddressProperties{}); err != nil {
		return nil, errors.New(err.String())
	}
	host.SetRouteTable([]tcpip.Route{{Destination: with.Subnet(), NIC: nic}})
	socket, err := host.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, &waiter.Queue{})
	if err != nil {
		return nil, errors.New(err.String())
	}
	s.socket = socket
	if err := socket.Connect(tcpip.FullAddress{NIC: nic, Addr: address, Port: port}); err != nil {
		return nil, errors.New(err.String())
	}
	return s, nil
}

func (s *sender) send(count int) error {
	for range count {
		s.reader.Reset(s.payload)
		n, err := s.socket.Write(&s.reader, tcpip.WriteOptions{})
		if err != nil {
			return errors.New(err.String())
		}
		if n != int64(len(s.payload)) {
			return fmt.Errorf("%d bytes of %d were sent", n, len(s.payload))
		}
	}
	s.sent += uint64(count)
	return nil
}

// Sends one and says what all senders have in common of it, if it carries what was sent.
func (s *sender) check() (string, error) {
	var frame []byte
	s.device.kept = &frame
	if err := s.send(1); err != nil {
		return "", err
	}
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	datagram := header.UDP(ip.Payload())
	sum := header.PseudoHeaderChecksum(
		udp.ProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), datagram.Length())
	summed := s.offloads ||
		datagram.Checksum() != 0 && checksum.Checksum(datagram, sum) == math.MaxUint16
	right := ip.IsValid(len(ip)) && ip.IsChecksumValid() && datagram.DestinationPort() == port &&
		bytes.Equal(datagram.Payload(), s.payload)
	if !right || !summed {
		return "", fmt.Errorf("a wrong frame: %x", frame)
	}
	return fmt.Sprintf("%d B frame", len(frame)), nil
}

// How long to measure a case: for a time, or so many calls.
type limit struct {
	time  time.Duration
	calls int
}

func parseLimit(word string) (limit, error) {
	if calls, is := strings.CutSuffix(word, "x"); is {
		n, err := strconv.Atoi(calls)
		return limit{calls: max(1, n)}, err
	}
	ms, err := strconv.Atoi(word)
	return limit{time: time.Duration(max(1, ms)) * time.Millisecond}, err
}

// Has all allocated that is allocated once, and says how many packets fill the limit.
func (s *sender) warm(limit limit) (int, error) {
	if limit.calls > 0 {
		return limit.calls, s.send(limit.calls)
	}
	for count := 1; ; count *= 2 {
		start := time.Now()
		if err := s.send(count); err != nil {
			return 0, err
		}
		if took := time.Since(start); took >= limit.time/8 {
			each := took.Seconds() / float64(count)
			return max(1, int(limit.time.Seconds()/each)), nil
		}
	}
}

// Sends so long that it means something, and says what one packet cost.
func (s *sender) measure(name string, limit limit) error {
	made, err := s.check()
	if err != nil {
		return err
	}
	count, err := s.warm(limit)
	if err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	if err := s.send(count); err != nil {
		return err
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if s.device.taken != s.sent {
		return fmt.Errorf("%d of %d datagrams reached the device", s.device.taken, s.sent)
	}
	all := float64(count)
	fmt.Printf("%s\t%.3f\t%.6f\t%.3f\t%s\n", name, took.Seconds()*1e9/all,
		float64(after.Mallocs-before.Mallocs)/all,
		float64(after.TotalAlloc-before.TotalAlloc)/all, made)
	return nil
}

func run(words []string) error {
	if len(words) == 0 {
		return errors.New("MILLISECONDS [PART], or NUMBERx [PART]")
	}
	limit, err := parseLimit(words[0])
	if err != nil {
		return err
	}
	part := strings.Join(words[1:], " ")
	for _, offloads := range []bool{false, true} {
		how := "checksum computed"
		if offloads {
			how = "checksum offloaded"
		}
		for _, length := range lengths() {
			name := fmt.Sprintf("write %d B, %s", length, how)
			if !strings.Contains(name, part) {
				continue
			}
			s, err := newSender(bytes.Repeat([]byte{0x5a}, length), offloads)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := s.measure(name, limit); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func lengths() []int {
	var all []int
	for length := longest; length > 0; length /= 2 {
		all = append(all, length)
	}
	return append(all, 0)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
