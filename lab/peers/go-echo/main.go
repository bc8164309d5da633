// A server in Go on the kernel's stack: with the net package, or with netpoll.
//
//	go-echo net PORT
//	go-echo netpoll PORT
//
// It offers what lab/load/src/serve.rs says; netpoll has no datagrams.
package main

import (
	"fmt"
	"os"
	"strconv"
)

// Bytes of a read or write: as many as iperf3's.
const chunk = 128 * 1024

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "go-echo:", err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) != 2 {
		return fmt.Errorf("usage: go-echo net|netpoll PORT")
	}
	port, err := strconv.Atoi(words[1])
	if err != nil {
		return err
	}
	switch words[0] {
	case "net":
		return withNet(port)
	case "netpoll":
		return withNetpoll(port)
	default:
		return fmt.Errorf("%s: net or netpoll", words[0])
	}
}
