package main

import (
	"encoding/binary"
	"fmt"
	"net"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// Bytes of a read or write: as many as iperf3's.
	chunk = 128 * 1024
	// Connections that nobody has accepted yet.
	backlog = 1024
)

func serve(host *stack.Stack, port uint16) error {
	returned, err := gonet.DialUDP(host, &tcpip.FullAddress{Port: port}, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	counted, err := gonet.DialUDP(host, &tcpip.FullAddress{Port: port + 1}, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	go giveBack(returned)
	go count(counted)
	failed := make(chan error)
	roles := []func(net.Conn){echo, sink, source}
	// The first port is the last one: who reaches it reaches all.
	for n := len(roles) - 1; n >= 0; n-- {
		listener, err := listen(host, port+uint16(n))
		if err != nil {
			return err
		}
		go func() { failed <- accept(listener, roles[n]) }()
	}
	return <-failed
}

// The adapter's own listener has room for ten.
func listen(host *stack.Stack, port uint16) (net.Listener, error) {
	queue := new(waiter.Queue)
	endpoint, err := host.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, queue)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %s", err)
	}
	if err := endpoint.Bind(tcpip.FullAddress{Port: port}); err != nil {
		return nil, fmt.Errorf("bind: %s", err)
	}
	if err := endpoint.Listen(backlog); err != nil {
		return nil, fmt.Errorf("listen: %s", err)
	}
	return gonet.NewTCPListener(host, queue, endpoint), nil
}

func accept(listener net.Listener, role func(net.Conn)) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			role(connection)
		}()
	}
}

// Small at first: most connections carry little, and each has a buffer of its own.
func echo(connection net.Conn) {
	bytes := make([]byte, 4096)
	for {
		n, err := connection.Read(bytes)
		if err != nil {
			return
		}
		if _, err := connection.Write(bytes[:n]); err != nil {
			return
		}
		if n == len(bytes) && n < chunk {
			bytes = make([]byte, 2*n)
		}
	}
}

func sink(connection net.Conn) {
	bytes := make([]byte, chunk)
	for {
		if _, err := connection.Read(bytes); err != nil {
			return
		}
	}
}

func source(connection net.Conn) {
	bytes := make([]byte, chunk)
	for {
		if _, err := connection.Write(bytes); err != nil {
			return
		}
	}
}

// What cannot be sent is lost, as datagrams are.
func giveBack(socket *gonet.UDPConn) {
	bytes := make([]byte, 65536)
	for {
		if n, from, err := socket.ReadFrom(bytes); err == nil {
			socket.WriteTo(bytes[:n], from)
		}
	}
}

func count(socket *gonet.UDPConn) {
	bytes := make([]byte, 65536)
	var all uint64
	for {
		n, from, err := socket.ReadFrom(bytes)
		switch {
		case err != nil:
		case n == 1:
			socket.WriteTo(binary.BigEndian.AppendUint64(nil, all), from)
		default:
			all++
		}
	}
}
