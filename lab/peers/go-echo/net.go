package main

import (
	"encoding/binary"
	"fmt"
	"net"
)

// A goroutine for each connection, as Go's servers have.
func withNet(port int) error {
	if err := datagrams(port); err != nil {
		return err
	}
	failed := make(chan error)
	roles := []func(net.Conn){echo, sink, source}
	listeners := make([]net.Listener, len(roles))
	// The first port is the last one: who reaches it reaches all.
	for n := len(roles) - 1; n >= 0; n-- {
		var err error
		if listeners[n], err = net.Listen("tcp4", fmt.Sprintf(":%d", port+n)); err != nil {
			return err
		}
		go func() { failed <- accept(listeners[n], roles[n]) }()
	}
	return <-failed
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

func datagrams(port int) error {
	returned, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
	if err != nil {
		return err
	}
	counted, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port + 1})
	if err != nil {
		return err
	}
	go giveBack(returned)
	go count(counted)
	return nil
}

// What cannot be sent is lost, as datagrams are.
func giveBack(socket *net.UDPConn) {
	bytes := make([]byte, 65536)
	for {
		if n, from, err := socket.ReadFromUDPAddrPort(bytes); err == nil {
			socket.WriteToUDPAddrPort(bytes[:n], from)
		}
	}
}

func count(socket *net.UDPConn) {
	bytes := make([]byte, 65536)
	var all uint64
	for {
		n, from, err := socket.ReadFromUDPAddrPort(bytes)
		switch {
		case err != nil:
		case n == 1:
			socket.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, all), from)
		default:
			all++
		}
	}
}
