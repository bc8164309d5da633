package main

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Bytes of a packet socket's queues, and the largest packet before segmentation: what gVisor's own sandbox uses.
const (
	queueBytes = 4 << 20
	gsoBytes   = 65536
)

// openLink gives a packet socket at a device, set up as gVisor's sandbox does it: the kernel segments and puts segments
// together (virtio-net headers), and checks the checksums of what comes in.
func openLink(name string) (stack.LinkEndpoint, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	fd, err := packetSocket(device.Index)
	if err != nil {
		return nil, err
	}
	return fdbased.New(&fdbased.Options{
		FDs:                []int{fd},
		MTU:                uint32(device.MTU),
		EthernetHeader:     true,
		Address:            tcpip.LinkAddress(device.HardwareAddr),
		PacketDispatchMode: fdbased.RecvMMsg,
		GSOMaxSize:         gsoBytes,
		RXChecksumOffload:  true,
	})
}

func packetSocket(index int) (int, error) {
	protocol := uint16(unix.ETH_P_ALL)>>8 | uint16(unix.ETH_P_ALL)<<8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return -1, fmt.Errorf("PACKET_VNET_HDR: %w", err)
	}
	for _, option := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, queueBytes); err != nil {
			return -1, fmt.Errorf("queues: %w", err)
		}
	}
	address := unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index}
	if err := unix.Bind(fd, &address); err != nil {
		return -1, fmt.Errorf("bind: %w", err)
	}
	return fd, unix.SetNonblock(fd, true)
}
