/* The upper bound: a relay that only copies. It starts an agent per connection and forwards bytes.

     relay PORT COMMAND [ARGUMENT...]         unchanged
     relay --ws PORT COMMAND [ARGUMENT...]    lines of the agent as WebSocket text messages (RFC 6455), and back

   It listens on 127.0.0.1 and prints `listening on PORT`; port 0 is any free one. One thread, poll, read and write of
   64 KB, no libraries. It validates neither JSON nor UTF-8 and has no authentication. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CHUNK = 64 * 1024,
    LARGEST_MESSAGE = 256 * 1024 * 1024,
    LARGEST_REQUEST = 16 * 1024,
    MOST_CONNECTIONS = 4096,
    /* Places in the list that poll gets, for each connection. */
    SOCKET = 0,
    TO_AGENT = 1,
    FROM_AGENT = 2,
    PLACES = 3,
};

/* What lies between [start, end) is still to be dealt with. */
struct buffer {
    char *bytes;
    size_t room, start, end;
};

struct connection {
    /* -1 when it is closed. */
    int socket, to_agent, from_agent;
    pid_t agent;
    bool upgraded, said_close;
    struct buffer for_agent, for_socket;
    /* For WebSockets, what has no end yet: a frame, a line and how far that was searched for its end. */
    struct buffer frames, line;
    size_t searched;
};

static struct connection *connections[MOST_CONNECTIONS];
static int connection_count;
static bool websocket;
static char **command;

static void fail(const char *what) {
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Buffers */

static size_t pending(const struct buffer *buffer) {
    return buffer->end - buffer->start;
}

/* Room at the end for so many bytes more. */
static char *room_for(struct buffer *buffer, size_t size) {
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
    if (buffer->end + size > buffer->room) {
        if (buffer->start > 0)
            memmove(buffer->bytes, buffer->bytes + buffer->start, pending(buffer));
        buffer->end -= buffer->start;
        buffer->start = 0;
        if (buffer->end + size > buffer->room &&
            (buffer->bytes = realloc(buffer->bytes, buffer->room = 2 * (buffer->end + size))) == NULL)
            fail("cannot hold a message");
    }
    return buffer->bytes + buffer->end;
}

static void append(struct buffer *buffer, const void *bytes, size_t size) {
    memcpy(room_for(buffer, size), bytes, size);
    buffer->end += size;
}

/* False at the end, or when it was lost. */
static bool fill(struct buffer *buffer, int descriptor) {
    ssize_t count = read(descriptor, room_for(buffer, CHUNK), CHUNK);
    if (count > 0)
        buffer->end += (size_t)count;
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Write as much as possible without blocking. False when the reader has closed. */
static bool drain(struct buffer *buffer, int descriptor) {
    while (pending(buffer) > 0) {
        ssize_t count = write(descriptor, buffer->bytes + buffer->start, pending(buffer));
        if (count < 0)
            return errno == EAGAIN || errno == EINTR;
        buffer->start += (size_t)count;
    }
    return true;
}

/* The handshake of a WebSocket */

static uint32_t rotated(uint32_t word, int bits) {
    return word << bits | word >> (32 - bits);
}

/* SHA-1 of less than two blocks, which is all that the handshake needs. */
static void sha1(const char *text, size_t size, unsigned char digest[20]) {
    uint32_t state[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}, words[80];
    unsigned char blocks[128] = {0};
    size_t padded = size + 9 <= 64 ? 64 : 128;
    memcpy(blocks, text, size);
    blocks[size] = 0x80;
    blocks[padded - 2] = (unsigned char)(8 * size >> 8);
    blocks[padded - 1] = (unsigned char)(8 * size);
    for (unsigned char *block = blocks; block < blocks + padded; block += 64) {
        for (int i = 0; i < 16; i++)
            words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                       (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
        for (int i = 16; i < 80; i++)
            words[i] = rotated(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (int i = 0; i < 80; i++) {
            uint32_t mix = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                           : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                           : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                                    : (b ^ c ^ d) + 0xca62c1d6;
            uint32_t next = rotated(a, 5) + mix + e + words[i];
            e = d, d = c, c = rotated(b, 30), b = a, a = next;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
    for (int i = 0; i < 20; i++)
        digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}

static void base64(const unsigned char digest[20], char text[29]) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 28; i++) {
        int bit = 6 * i, byte = bit / 8;
        unsigned pair = (unsigned)digest[byte < 20 ? byte : 19] << 8 | (byte + 1 < 20 ? digest[byte + 1] : 0);
        text[i] = DIGITS[pair >> (10 - bit % 8) & 63];
    }
    text[27] = '=';
    text[28] = '\0';
}

/* False if that is not an upgrade, or a part of one that is too long. */
static bool take_upgrade(struct connection *connection) {
    static const char NAME[] = "\r\nSec-WebSocket-Key:", END[] = "\r\n\r\n";
    char *request = connection->frames.bytes + connection->frames.start, text[128], answer[256];
    unsigned char digest[20];
    char *end = memmem(request, pending(&connection->frames), END, strlen(END));
    if (end == NULL)
        return pending(&connection->frames) < LARGEST_REQUEST;
    *end = '\0';
    char *key = strcasestr(request, NAME);
    if (key == NULL)
        return false;
    key += strlen(NAME);
    key += strspn(key, " ");
    int size = snprintf(text, sizeof text, "%.*s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", (int)strcspn(key, " \r\n"), key);
    if (size > 100)
        return false;
    sha1(text, (size_t)size, digest);
    base64(digest, text);
    size = snprintf(answer, sizeof answer,
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    "Sec-WebSocket-Accept: %s\r\n\r\n",
                    text);
    append(&connection->for_socket, answer, (size_t)size);
    connection->frames.start += (size_t)(end - request) + strlen(END);
    connection->upgraded = true;
    return true;
}

/* Messages of a WebSocket */

enum opcode { CONTINUATION = 0, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

static void say_frame(struct connection *connection, enum opcode opcode, const char *payload, size_t size) {
    size_t head_size = size < 126 ? 2 : size < 65536 ? 4 : 10;
    unsigned char head[10] = {(unsigned char)(0x80 | opcode)};
    head[1] = (unsigned char)(head_size == 2 ? size : head_size == 4 ? 126 : 127);
    for (size_t i = 2; i < head_size; i++)
        head[i] = (unsigned char)(size >> 8 * (head_size - 1 - i));
    char *frame = room_for(&connection->for_socket, head_size + size);
    memcpy(frame, head, head_size);
    memcpy(frame + head_size, payload, size);
    connection->for_socket.end += head_size + size;
}

static void say_lines(struct connection *connection) {
    struct buffer *line = &connection->line;
    char *end;
    size_t *searched = &connection->searched;
    while ((end = memchr(line->bytes + line->start + *searched, '\n', pending(line) - *searched)) != NULL) {
        size_t size = (size_t)(end - line->bytes) - line->start;
        say_frame(connection, TEXT, line->bytes + line->start, size);
        line->start += size + 1;
        *searched = 0;
    }
    *searched = pending(line);
}

static void unmask(char *payload, size_t size, const char mask[4]) {
    uint64_t word, pattern;
    memcpy(&pattern, mask, 4);
    memcpy((char *)&pattern + 4, mask, 4);
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&word, payload + i, 8);
        word ^= pattern;
        memcpy(payload + i, &word, 8);
    }
    for (; i < size; i++)
        payload[i] ^= mask[i % 4];
}

/* Handle all complete frames. False if the input is not a valid frame. */
static bool take_frames(struct connection *connection) {
    for (;;) {
        const unsigned char *frame = (unsigned char *)connection->frames.bytes + connection->frames.start;
        size_t there = pending(&connection->frames);
        if (there < 2)
            return true;
        size_t marker = frame[1] & 0x7f, head = marker < 126 ? 2 : marker == 126 ? 4 : 10, size = 0;
        if ((frame[1] & 0x80) == 0 || frame[0] & 0x70)
            return false;
        if (there < head + 4)
            return true;
        for (size_t i = 2; i < head; i++)
            size = size << 8 | frame[i];
        if (head == 2)
            size = marker;
        if (size > LARGEST_MESSAGE)
            return false;
        if (there < head + 4 + size)
            return true;
        char *payload = (char *)frame + head + 4;
        unmask(payload, size, payload - 4);
        switch (frame[0] & 0x0f) {
        case CONTINUATION:
        case TEXT:
        case BINARY:
            append(&connection->for_agent, payload, size);
            if (frame[0] & 0x80)
                append(&connection->for_agent, "\n", 1);
            break;
        case PING:
            say_frame(connection, PONG, payload, size);
            break;
        case CLOSE:
            say_frame(connection, CLOSE, payload, size < 2 ? 0 : 2);
            connection->said_close = true;
            break;
        }
        connection->frames.start += head + 4 + size;
    }
}

/* Connections */

static void close_descriptor(int *descriptor) {
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

static void start_agent(struct connection *connection) {
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0 || (connection->agent = fork()) < 0)
        fail("cannot start an agent");
    if (connection->agent == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGCHLD, SIG_DFL);
        dup2(down[0], STDIN_FILENO);
        dup2(up[1], STDOUT_FILENO);
        execvp(command[0], command);
        fprintf(stderr, "relay: cannot run %s: %s\n", command[0], strerror(errno));
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    connection->to_agent = down[1];
    connection->from_agent = up[0];
    fcntl(connection->to_agent, F_SETFL, O_NONBLOCK);
    fcntl(connection->from_agent, F_SETFL, O_NONBLOCK);
}

static void accept_connection(int listener) {
    int one = 1, socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
        return;
    if (connection_count == MOST_CONNECTIONS) {
        close(socket);
        return;
    }
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        fail("cannot hold a connection");
    connection->socket = socket;
    start_agent(connection);
    connections[connection_count++] = connection;
}

static void free_connection(struct connection *connection) {
    close_descriptor(&connection->socket);
    close_descriptor(&connection->to_agent);
    close_descriptor(&connection->from_agent);
    /* It has seen the end of its stdin, and may not have looked. */
    kill(connection->agent, SIGTERM);
    free(connection->for_agent.bytes);
    free(connection->for_socket.bytes);
    free(connection->frames.bytes);
    free(connection->line.bytes);
    free(connection);
}

/* What has come from the client. False when the connection is over. */
static bool hear_socket(struct connection *connection) {
    if (!fill(websocket ? &connection->frames : &connection->for_agent, connection->socket)) {
        /* The agent gets what was said, then the end, and may still say something about it. */
        connection->said_close = true;
        return true;
    }
    if (websocket && !connection->upgraded && !take_upgrade(connection))
        return false;
    return !websocket || !connection->upgraded || take_frames(connection);
}

static void hear_agent(struct connection *connection) {
    if (!fill(websocket ? &connection->line : &connection->for_socket, connection->from_agent))
        close_descriptor(&connection->from_agent);
    else if (websocket)
        say_lines(connection);
}

/* Do what can be done for a connection. False when it is over. */
static bool serve(struct connection *connection, const struct pollfd *ready) {
    if (ready[SOCKET].revents & ~POLLOUT && !connection->said_close && !hear_socket(connection))
        return false;
    if (ready[FROM_AGENT].revents)
        hear_agent(connection);
    if (connection->to_agent >= 0 && !drain(&connection->for_agent, connection->to_agent))
        close_descriptor(&connection->to_agent);
    if (connection->said_close && pending(&connection->for_agent) == 0)
        close_descriptor(&connection->to_agent);
    if (!drain(&connection->for_socket, connection->socket))
        return false;
    return connection->from_agent >= 0 || pending(&connection->for_socket) > 0;
}

/* Backpressure: a side is read only after its earlier bytes were written. */
static void watch(const struct connection *connection, struct pollfd *places) {
    bool full = pending(&connection->for_socket) > 0, waits = pending(&connection->for_agent) > 0;
    short listens = waits || connection->said_close ? 0 : POLLIN;
    places[SOCKET] = (struct pollfd){connection->socket, (short)(listens | (full ? POLLOUT : 0)), 0};
    places[TO_AGENT] = (struct pollfd){waits ? connection->to_agent : -1, POLLOUT, 0};
    places[FROM_AGENT] = (struct pollfd){full ? -1 : connection->from_agent, POLLIN, 0};
    /* A socket whose other end has gone is reported whether it is asked for or not, again and again. */
    if (places[SOCKET].events == 0)
        places[SOCKET].fd = -1;
}

static int listen_on(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    address.sin_port = htons((uint16_t)atoi(port));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, SOMAXCONN) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        fail("cannot listen");
    printf("listening on %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int count, char **arguments) {
    static struct pollfd places[1 + PLACES * MOST_CONNECTIONS];
    websocket = count > 1 && strcmp(arguments[1], "--ws") == 0;
    if (count < 3 + websocket) {
        fprintf(stderr, "usage: relay [--ws] PORT COMMAND [ARGUMENT...]\n");
        return 1;
    }
    command = arguments + 2 + websocket;
    signal(SIGPIPE, SIG_IGN);
    /* Let the kernel reap ended agents. */
    signal(SIGCHLD, SIG_IGN);
    places[0] = (struct pollfd){listen_on(arguments[1 + websocket]), POLLIN, 0};
    for (;;) {
        for (int i = 0; i < connection_count; i++)
            watch(connections[i], places + 1 + PLACES * i);
        if (poll(places, (nfds_t)(1 + PLACES * connection_count), -1) < 0 && errno != EINTR)
            fail("cannot wait");
        /* Backwards, for the last one takes the place of one that is over. */
        for (int i = connection_count - 1; i >= 0; i--) {
            if (!serve(connections[i], places + 1 + PLACES * i)) {
                free_connection(connections[i]);
                connections[i] = connections[--connection_count];
            }
        }
        if (places[0].revents)
            accept_connection(places[0].fd);
    }
}
