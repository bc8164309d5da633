/* Connections: what comes goes back, or is swallowed, or bytes are sent without end. */
#include <stdbool.h>
#include <stdlib.h>

#include "lwip/pbuf.h"
#include "lwip/tcp.h"
#include "server.h"

/* Bytes of a write: what tcp_write() can be told. */
#define CHUNK 65535
/* Twice a second lwIP asks a connection whether there is something to do. */
#define HALF_SECONDS 1

struct connection {
    enum role role;
    /* What has come and could not be sent back yet. */
    struct pbuf *waiting;
    /* Whether the client has sent all. */
    bool has_ended;
};

static void forget(struct connection *connection)
{
    if (connection->waiting != NULL)
        pbuf_free(connection->waiting);
    free(connection);
}

/* Returns what a callback returns. */
static err_t end(struct connection *connection, struct tcp_pcb *pcb)
{
    tcp_arg(pcb, NULL);
    tcp_recv(pcb, NULL);
    tcp_sent(pcb, NULL);
    tcp_err(pcb, NULL);
    tcp_poll(pcb, NULL, 0);
    forget(connection);
    if (tcp_close(pcb) == ERR_OK)
        return ERR_OK;
    tcp_abort(pcb);
    return ERR_ABRT;
}

/* As much as the connection takes of it. The window opens by what has gone back: a client that does not read is stopped. */
static void give_back(struct connection *connection, struct tcp_pcb *pcb)
{
    while (connection->waiting != NULL) {
        struct pbuf *first = connection->waiting;
        u16_t len = (u16_t)LWIP_MIN(first->len, tcp_sndbuf(pcb));

        if (len == 0 || tcp_write(pcb, first->payload, len, TCP_WRITE_FLAG_COPY) != ERR_OK)
            break;
        connection->waiting = pbuf_free_header(first, len);
        tcp_recved(pcb, len);
    }
}

/* These bytes are never written, so lwIP refers to them, and copies nothing. */
static void pour(struct tcp_pcb *pcb)
{
    static const char zeros[CHUNK];
    tcpwnd_size_t room;

    while ((room = tcp_sndbuf(pcb)) > 0) {
        if (tcp_write(pcb, zeros, (u16_t)LWIP_MIN(room, CHUNK), 0) != ERR_OK)
            break;
    }
}

/* Moves what can be moved. Returns what a callback returns. */
static err_t serve_one(struct connection *connection, struct tcp_pcb *pcb)
{
    if (connection->has_ended && connection->waiting == NULL)
        return end(connection, pcb);
    if (connection->role == SOURCE)
        pour(pcb);
    else
        give_back(connection, pcb);
    if (connection->has_ended && connection->waiting == NULL)
        return end(connection, pcb);
    /* Within a packet's callbacks this is left to their end. */
    tcp_output(pcb);
    return ERR_OK;
}

static err_t on_received(void *argument, struct tcp_pcb *pcb, struct pbuf *bytes, err_t error)
{
    struct connection *connection = argument;

    LWIP_UNUSED_ARG(error);
    if (bytes == NULL) {
        connection->has_ended = true;
    } else if (connection->role == ECHO) {
        /* A chain counts its bytes in 16 bits. What is refused comes again. */
        if (connection->waiting != NULL && connection->waiting->tot_len + bytes->tot_len > UINT16_MAX)
            return ERR_MEM;
        if (connection->waiting != NULL)
            pbuf_cat(connection->waiting, bytes);
        else
            connection->waiting = bytes;
    } else {
        tcp_recved(pcb, bytes->tot_len);
        pbuf_free(bytes);
        return ERR_OK;
    }
    return serve_one(connection, pcb);
}

static err_t on_sent(void *argument, struct tcp_pcb *pcb, u16_t len)
{
    LWIP_UNUSED_ARG(len);
    return serve_one(argument, pcb);
}

static err_t on_poll(void *argument, struct tcp_pcb *pcb)
{
    return serve_one(argument, pcb);
}

/* The connection is gone already. */
static void on_error(void *argument, err_t error)
{
    LWIP_UNUSED_ARG(error);
    forget(argument);
}

static err_t on_accepted(void *argument, struct tcp_pcb *pcb, err_t error)
{
    struct connection *connection;

    if (error != ERR_OK || pcb == NULL)
        return ERR_VAL;
    connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return ERR_MEM;
    connection->role = *(const enum role *)argument;
    tcp_arg(pcb, connection);
    tcp_recv(pcb, on_received);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, HALF_SECONDS);
    tcp_nagle_disable(pcb);
    return serve_one(connection, pcb);
}

err_t streams_listen(uint16_t port, enum role role)
{
    static const enum role roles[] = { ECHO, SINK, SOURCE };
    struct tcp_pcb *pcb = tcp_new();
    struct tcp_pcb *listener;
    err_t error;

    if (pcb == NULL)
        return ERR_MEM;
    error = tcp_bind(pcb, IP_ANY_TYPE, port);
    if (error != ERR_OK)
        return error;
    listener = tcp_listen(pcb);
    if (listener == NULL)
        return ERR_MEM;
    tcp_arg(listener, (void *)&roles[role]);
    tcp_accept(listener, on_accepted);
    return ERR_OK;
}
