package main

import (
	"context"
	"fmt"

	"github.com/cloudwego/netpoll"
)

// Two loops: a thread for each of the processors that the figures of docs/benchmarking.md are from.
const loops = 2

// netpoll's loops read; a handler is called when there is something.
func withNetpoll(port int) error {
	if err := netpoll.SetNumLoops(loops); err != nil {
		return err
	}
	nothing := func(context.Context, netpoll.Connection) error { return nil }
	pour := func(ctx context.Context, connection netpoll.Connection) context.Context {
		go netpollSource(connection)
		return ctx
	}
	failed := make(chan error)
	serve := func(offset int, request netpoll.OnRequest, options ...netpoll.Option) error {
		listener, err := netpoll.CreateListener("tcp4", fmt.Sprintf(":%d", port+offset))
		if err != nil {
			return err
		}
		loop, err := netpoll.NewEventLoop(request, options...)
		if err != nil {
			return err
		}
		go func() { failed <- loop.Serve(listener) }()
		return nil
	}
	// The first port is the last one: who reaches it reaches all.
	if err := serve(2, nothing, netpoll.WithOnConnect(pour)); err != nil {
		return err
	}
	if err := serve(1, netpollSink); err != nil {
		return err
	}
	if err := serve(0, netpollEcho); err != nil {
		return err
	}
	return <-failed
}

// What has come is written from where it lies: it is released when it has been written.
func netpollEcho(_ context.Context, connection netpoll.Connection) error {
	reader, writer := connection.Reader(), connection.Writer()
	bytes, err := reader.Next(reader.Len())
	if err != nil {
		return err
	}
	if _, err := writer.WriteBinary(bytes); err != nil {
		return err
	}
	if err := writer.Flush(); err != nil {
		return err
	}
	return reader.Release()
}

func netpollSink(_ context.Context, connection netpoll.Connection) error {
	reader := connection.Reader()
	if err := reader.Skip(reader.Len()); err != nil {
		return err
	}
	return reader.Release()
}

func netpollSource(connection netpoll.Connection) {
	bytes := make([]byte, chunk)
	for connection.IsActive() {
		if _, err := connection.Writer().WriteBinary(bytes); err != nil {
			return
		}
		if err := connection.Writer().Flush(); err != nil {
			return
		}
	}
}
