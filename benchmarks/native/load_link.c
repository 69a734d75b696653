/* See load_link.h. */

#define _GNU_SOURCE
#include "load_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

enum {
    RECEIVE_ROOM = 256 * 1024,
    LARGEST_MESSAGE = 256 * 1024 * 1024,
    EVENTS_AT_ONCE = 256,
    /* A link that resumes confirms what it has received after so much, and after so many seconds in any case. */
    CONFIRM_MESSAGES = 4096,
    CONFIRM_BYTES = 512 * 1024,
    CONFIRM_SECONDS = 5,
};

/* Seconds that the peers have to receive our close. */
static const double LEAVE_SECONDS = 1.0;

static const double SHORT_SECONDS = 0.1;

/* The example key of RFC 6455, section 1.3: a constant key is enough here. */
static const char KEY[] = "dGhlIHNhbXBsZSBub25jZQ==";
static const char ACCEPT[] = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
static const unsigned char MASK[4] = {0x37, 0xfa, 0x21, 0x3d};

enum opcode { CONTINUATION = 0, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

static struct target target;
static struct events events;
static double deadline;
static struct link *links;
static int link_count, epoll;
#ifdef WITH_TLS
static SSL_CTX *tls;
#endif

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* For the lines that end the program. */
static const char *at_work(void) {
    static char text[200];
    events.describe(text, sizeof text);
    return text;
}

void *grown(void *memory, size_t size) {
    if ((memory = realloc(memory, size)) == NULL)
        fail("out of memory");
    return memory;
}

/* No child outlives this program, however it ends. */
static void kill_children(void) {
    for (int i = 0; i < link_count; i++)
        if (links[i].child > 0)
            kill(links[i].child, SIGKILL);
}

struct link *make_links(int count, const struct target *where, const struct events *to_tell, double seconds) {
    target = *where;
    events = *to_tell;
    deadline = now() + seconds;
    if ((links = calloc((size_t)count, sizeof *links)) == NULL)
        fail("out of memory");
    link_count = count;
    for (int i = 0; i < count; i++)
        links[i].number = i;
    signal(SIGPIPE, SIG_IGN);
    atexit(kill_children);
    if ((epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
        fail("cannot wait for events: %s", strerror(errno));
    if (target.tls) {
#ifdef WITH_TLS
        if ((tls = SSL_CTX_new(TLS_client_method())) == NULL)
            fail("cannot begin with TLS");
        SSL_CTX_set_verify(tls, SSL_VERIFY_NONE, NULL);
        SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
#else
        fail("built without TLS: openssl/ssl.h was not there");
#endif
    }
    return links;
}

/* Bytes out */

/* Room for so many bytes at the end of the outbox. */
static char *extend_outbox(struct link *link, size_t size) {
    if (link->sent == link->said)
        link->sent = link->said = 0;
    if (link->said + size > link->outbox_room) {
        if (link->sent > 0)
            memmove(link->outbox, link->outbox + link->sent, link->said - link->sent);
        link->said -= link->sent;
        link->sent = 0;
        if (link->said + size > link->outbox_room)
            link->outbox = grown(link->outbox, link->outbox_room = 2 * (link->said + size));
    }
    link->said += size;
    return link->outbox + link->said - size;
}

static size_t unsent(const struct link *link) {
    return link->said - link->sent;
}

static void watch(struct link *link) {
    bool wanted = link->tls_wants_write || unsent(link) > 0;
    if (wanted == link->watched_for_write || link->state == CLOSED || link->stalled)
        return;
    struct epoll_event event = {.data.ptr = link, .events = wanted ? EPOLLOUT : 0};
    if (link->in == link->out)
        event.events |= EPOLLIN;
    /* The two pipes of a child are watched one by one. */
    int operation = link->in == link->out ? EPOLL_CTL_MOD : wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    if (epoll_ctl(epoll, operation, link->out, &event) < 0)
        fail("cannot watch a connection: %s", strerror(errno));
    link->watched_for_write = wanted;
}

/* As read(2) and write(2), with EAGAIN, over TLS as well. */
static ssize_t raw_write(struct link *link, const char *bytes, size_t size) {
#ifdef WITH_TLS
    if (link->ssl != NULL) {
        link->tls_wants_write = false;
        ERR_clear_error();
        int count = SSL_write(link->ssl, bytes, size > INT32_MAX ? INT32_MAX : (int)size);
        if (count > 0)
            return count;
        int error = SSL_get_error(link->ssl, count);
        const char *reason = ERR_reason_error_string(ERR_get_error());
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            fail("TLS failed while writing: %s", reason != NULL ? reason : "the connection was lost");
        link->tls_wants_write = error == SSL_ERROR_WANT_WRITE;
        errno = EAGAIN;
        return -1;
    }
#endif
    return write(link->out, bytes, size);
}

static ssize_t raw_read(struct link *link, char *bytes, size_t size) {
#ifdef WITH_TLS
    if (link->ssl != NULL) {
        ERR_clear_error();
        int count = SSL_read(link->ssl, bytes, size > INT32_MAX ? INT32_MAX : (int)size);
        if (count > 0)
            return count;
        int error = SSL_get_error(link->ssl, count);
        link->tls_wants_write = error == SSL_ERROR_WANT_WRITE;
        if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
            errno = EAGAIN;
            return -1;
        }
        const char *reason = ERR_reason_error_string(ERR_get_error());
        if (reason != NULL && link->state == CONNECTING)
            fail("TLS failed: %s", reason);
        return 0;
    }
#endif
    return read(link->in, bytes, size);
}

static void flush(struct link *link) {
    while (unsent(link) > 0) {
        ssize_t count = raw_write(link, link->outbox + link->sent, unsent(link));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno != EAGAIN) {
            if (link->state == LEAVING) {
                link->sent = link->said;
                break;
            }
            fail("connection %d was lost while %s: %s", link->number, at_work(), strerror(errno));
        }
        if (count < 0)
            break;
        link->sent += (size_t)count;
    }
    watch(link);
}

static void say_frame(struct link *link, enum opcode opcode, const char *payload, size_t size) {
    size_t head = size < 126 ? 2 : size < 65536 ? 4 : 10;
    unsigned char *frame = (unsigned char *)extend_outbox(link, head + 4 + size);
    frame[0] = (unsigned char)(0x80 | opcode);
    frame[1] = (unsigned char)(0x80 | (head == 2 ? size : head == 4 ? 126 : 127));
    for (size_t i = 2, shift = 8 * (head - 2); i < head; i++)
        frame[i] = (unsigned char)(size >> (shift -= 8));
    memcpy(frame + head, MASK, 4);
    unsigned char *masked = frame + head + 4;
    uint32_t word, mask;
    memcpy(&mask, MASK, 4);
    size_t i = 0;
    for (; i + 4 <= size; i += 4) {
        memcpy(&word, payload + i, 4);
        word ^= mask;
        memcpy(masked + i, &word, 4);
    }
    for (; i < size; i++)
        masked[i] = (unsigned char)payload[i] ^ MASK[i % 4];
}

static void say(struct link *link, const char *text, size_t size) {
    if (target.kind == WEBSOCKET) {
        say_frame(link, TEXT, text, size);
        return;
    }
    char *line = extend_outbox(link, size + 1);
    memcpy(line, text, size);
    line[size] = '\n';
}

void send_message(struct link *link, const char *text, size_t size) {
    link->sent_count++;
    bool waiting = unsent(link) > 0;
    say(link, text, size);
    if (!waiting)
        flush(link);
}

/* Links that resume: both ends count, see docs/resume-wire.md. */

static void confirm(struct link *link) {
    char text[128];
    int size = snprintf(text, sizeof text,
                        "{\"jsonrpc\":\"2.0\",\"method\":\"_acp-gateway/ack\",\"params\":{\"received\":%llu}}",
                        (unsigned long long)link->message_count);
    say(link, text, (size_t)size);
    flush(link);
    link->messages_confirmed = link->message_count;
    link->bytes_confirmed = link->message_bytes;
    link->confirmed_at = now();
}

static void confirm_if_due(struct link *link) {
    if (link->message_count - link->messages_confirmed >= CONFIRM_MESSAGES ||
        link->message_bytes - link->bytes_confirmed >= CONFIRM_BYTES || now() - link->confirmed_at > CONFIRM_SECONDS)
        confirm(link);
}

/* Whether a message is for the link itself. Updates never are, and are most of what comes. */
static bool take_control_message(struct link *link, const char *text, size_t size) {
    static const char MARK[] = "_acp-gateway/", ACK[] = "\"_acp-gateway/ack\"", RECEIVED[] = "\"received\":";
    size_t beginning = size < 200 ? size : 200;
    if (memmem(text, beginning, "\"session/update\"", 16) != NULL || memmem(text, size, MARK, strlen(MARK)) == NULL ||
        memmem(text, beginning, "\"id\"", 4) != NULL)
        return false;
    if (memmem(text, size, ACK, strlen(ACK)) == NULL)
        return memmem(text, size, "\"_acp-gateway/goodbye\"", 22) != NULL;
    const char *received = memmem(text, size, RECEIVED, strlen(RECEIVED));
    uint64_t count = 0;
    if (received != NULL)
        for (const char *at = received + strlen(RECEIVED); at < text + size && *at >= '0' && *at <= '9'; at++)
            count = 10 * count + (uint64_t)(*at - '0');
    if (count > link->sent_count)
        fail("the gateway confirms %llu messages, %llu were sent", (unsigned long long)count,
             (unsigned long long)link->sent_count);
    if (count > link->sent_confirmed)
        link->sent_confirmed = count;
    return true;
}

static void deliver(struct link *link, const char *text, size_t size) {
    if (link->state != OPEN)
        return;
    if (target.resume && take_control_message(link, text, size))
        return;
    link->message_count++;
    link->message_bytes += size;
    events.message(link, text, size);
}

/* Beginning */

static void opened(struct link *link) {
    link->state = OPEN;
    link->sent_count = 0;
    link->confirmed_at = now();
    events.opened(link);
}

static const char *or_nothing(const char *text) {
    return text != NULL ? text : "";
}

static void say_upgrade(struct link *link) {
    char request[4096];
    int size = snprintf(request, sizeof request,
                        "GET /%s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n%s%s%s%s%s%s%s\r\n",
                        target.path, target.authority, KEY, target.token ? "Authorization: Bearer " : "",
                        or_nothing(target.token), target.token ? "\r\n" : "",
                        target.subprotocol ? "Sec-WebSocket-Protocol: " : "", or_nothing(target.subprotocol),
                        target.subprotocol ? "\r\n" : "", target.resume ? "Acp-Gateway-Resume: 0\r\n" : "");
    if (size >= (int)sizeof request)
        fail("the address or the token is too long");
    memcpy(extend_outbox(link, (size_t)size), request, (size_t)size);
}

static void say_hello(struct link *link) {
    char hello[2048];
    int size = snprintf(hello, sizeof hello,
                        "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"_acp-gateway/hello\",\"params\":{%s%s%s%s%s}}",
                        target.token ? "\"token\":\"" : "", or_nothing(target.token), target.token ? "\"" : "",
                        target.token && target.resume ? "," : "", target.resume ? "\"resume\":{}" : "");
    if (size >= (int)sizeof hello)
        fail("the token is too long");
    say(link, hello, (size_t)size);
}

/* One header of an answer, or "", in a buffer of its own. */
static const char *header(const char *head, const char *name) {
    static char value[256];
    const char *line = strcasestr(head, name);
    value[0] = '\0';
    if (line != NULL)
        snprintf(value, sizeof value, "%.*s", (int)strcspn(line + strlen(name), "\r\n"), line + strlen(name));
    return value;
}

/* Whether the answer to the upgrade is there as a whole. */
static bool take_upgrade(struct link *link) {
    char *head = link->buffer + link->taken;
    char *end = memmem(head, link->filled - link->taken, "\r\n\r\n", 4);
    if (end == NULL)
        return false;
    end[2] = '\0';
    if (strncmp(head, "HTTP/1.1 101", 12) != 0) {
        const char *reason = header(head, "\nAcp-Gateway: ");
        fail("refused: %.*s%s%s", (int)strcspn(head, "\r\n"), head, reason[0] ? ", " : "", reason);
    }
    if (strstr(head, ACCEPT) == NULL)
        fail("the answer to the upgrade has another Sec-WebSocket-Accept");
    if (target.resume && header(head, "\nAcp-Gateway-Resume:")[0] == '\0')
        fail("the server knows nothing of links that resume");
    link->taken += (size_t)(end + 4 - head);
    opened(link);
    return true;
}

static void take_hello_answer(struct link *link, const char *line, size_t size) {
    if (memmem(line, size, "\"connectionId\"", 14) == NULL)
        fail("refused: %.*s", (int)(size < 400 ? size : 400), line);
    if (target.resume && memmem(line, size, "\"received\"", 10) == NULL)
        fail("the server knows nothing of links that resume");
    opened(link);
}

/* Bytes in */

static void closed(struct link *link) {
    if (link->state != LEAVING)
        fail("connection %d was closed by the other end while %s", link->number, at_work());
    link->state = CLOSED;
    if (!link->stalled)
        epoll_ctl(epoll, EPOLL_CTL_DEL, link->in, NULL);
    if (link->out != link->in && link->out >= 0)
        close(link->out);
    close(link->in);
}

static void take_lines(struct link *link) {
    char *end;
    while ((end = memchr(link->buffer + link->searched, '\n', link->filled - link->searched)) != NULL) {
        const char *line = link->buffer + link->taken;
        size_t size = (size_t)(end - line);
        link->taken = link->searched = (size_t)(end + 1 - link->buffer);
        if (size > 0 && line[size - 1] == '\r')
            size--;
        if (link->state == CONNECTING)
            take_hello_answer(link, line, size);
        else if (size > 0)
            deliver(link, line, size);
    }
    link->searched = link->filled;
}

static void keep_piece(struct link *link, const char *payload, size_t size) {
    if (link->pieces_size + size > link->pieces_room)
        link->pieces = grown(link->pieces, link->pieces_room = 2 * (link->pieces_size + size));
    memcpy(link->pieces + link->pieces_size, payload, size);
    link->pieces_size += size;
}

static void take_frame(struct link *link, unsigned first, const char *payload, size_t size) {
    bool last = first & 0x80;
    switch (first & 0x0f) {
    case TEXT:
    case BINARY:
    case CONTINUATION:
        if (((first & 0x0f) == CONTINUATION) != link->in_pieces)
            fail("connection %d: a frame out of order", link->number);
        if (last && !link->in_pieces) {
            deliver(link, payload, size);
            break;
        }
        keep_piece(link, payload, size);
        if ((link->in_pieces = !last))
            break;
        deliver(link, link->pieces, link->pieces_size);
        link->pieces_size = 0;
        break;
    case PING:
        say_frame(link, PONG, payload, size);
        flush(link);
        break;
    case PONG:
        break;
    case CLOSE:
        if (link->state == OPEN)
            fail("connection %d was closed with %d %.*s while %s", link->number,
                 size < 2 ? 1005 : (unsigned char)payload[0] << 8 | (unsigned char)payload[1],
                 size < 2 ? 0 : (int)size - 2, size < 2 ? "" : payload + 2, at_work());
        break;
    default:
        fail("connection %d: a frame with opcode %u", link->number, first & 0x0f);
    }
}

static void take_frames(struct link *link) {
    for (;;) {
        const unsigned char *frame = (unsigned char *)link->buffer + link->taken;
        size_t there = link->filled - link->taken;
        if (there < 2)
            return;
        if (frame[0] & 0x70 || frame[1] & 0x80)
            fail("connection %d: a frame that is masked or has an extension", link->number);
        size_t head = frame[1] < 126 ? 2 : frame[1] == 126 ? 4 : 10, size = 0;
        if (there < head)
            return;
        for (size_t i = 2; i < head; i++)
            size = size << 8 | frame[i];
        if (head == 2)
            size = frame[1];
        if (size > LARGEST_MESSAGE)
            fail("connection %d: a frame of %zu bytes", link->number, size);
        if (there < head + size) {
            /* All of the room that it will need at once, not by and by. */
            if (link->room < head + size)
                link->buffer = grown(link->buffer, link->room = head + size + RECEIVE_ROOM);
            return;
        }
        link->taken += head + size;
        take_frame(link, frame[0], (const char *)frame + head, size);
    }
}

static void take_messages(struct link *link) {
    if (target.kind != WEBSOCKET)
        take_lines(link);
    else if (link->state != CONNECTING || take_upgrade(link))
        take_frames(link);
}

static void make_room(struct link *link) {
    if (link->buffer == NULL)
        link->buffer = grown(NULL, link->room = RECEIVE_ROOM);
    if (link->taken == link->filled) {
        link->taken = link->filled = link->searched = 0;
    } else if (link->taken > 0) {
        memmove(link->buffer, link->buffer + link->taken, link->filled - link->taken);
        link->filled -= link->taken;
        link->searched -= link->searched > link->taken ? link->taken : link->searched;
        link->taken = 0;
    }
    if (link->filled > LARGEST_MESSAGE)
        fail("connection %d: a message of more than %d bytes", link->number, LARGEST_MESSAGE);
    if (link->room - link->filled < RECEIVE_ROOM / 4)
        link->buffer = grown(link->buffer, link->room *= 2);
}

static void receive(struct link *link) {
    bool more = true;
    while (more && link->state != CLOSED && !link->stalled) {
        make_room(link);
        size_t before = link->filled;
        /* A TLS record is much smaller than the buffer, and epoll does not report data that OpenSSL has decrypted. */
        do {
            ssize_t count = raw_read(link, link->buffer + link->filled, link->room - link->filled);
            if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
                more = false;
                break;
            }
            if (count <= 0) {
                take_messages(link);
                closed(link);
                return;
            }
            link->filled += (size_t)count;
        } while (link->ssl != NULL && link->filled < link->room);
        more = more && link->ssl != NULL;
        if (link->filled > before)
            take_messages(link);
    }
    if (link->state == OPEN) {
        events.settled(link);
        if (target.resume)
            confirm_if_due(link);
    }
    watch(link);
}

/* Opening */

static void set_nonblocking(int descriptor) {
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

static int connect_socket(void) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(target.host, target.port, &hints, &found);
    if (error != 0)
        fail("cannot reach %s: %s", target.authority, gai_strerror(error));
    int descriptor = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    /* This is waited for, within the time that there is. */
    double left = deadline - now();
    struct timeval limit = {.tv_sec = left > 0 ? (time_t)left : 0, .tv_usec = 1};
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (descriptor < 0 || connect(descriptor, found->ai_addr, found->ai_addrlen) < 0)
        fail("cannot connect to %s: %s", target.authority, errno == EINPROGRESS ? "timeout" : strerror(errno));
    freeaddrinfo(found);
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return descriptor;
}

static void start_child(struct link *link) {
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0)
        fail("cannot start %s: %s", target.command[0], strerror(errno));
    link->child = fork();
    if (link->child < 0)
        fail("cannot fork: %s", strerror(errno));
    if (link->child == 0) {
        dup2(down[0], STDIN_FILENO);
        dup2(up[1], STDOUT_FILENO);
        signal(SIGPIPE, SIG_DFL);
        execvp(target.command[0], target.command);
        fprintf(stderr, "load: cannot run %s: %s\n", target.command[0], strerror(errno));
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    link->out = down[1];
    link->in = up[0];
}

void open_link(struct link *link) {
    link->state = CONNECTING;
    if (target.kind == CHILD)
        start_child(link);
    else
        link->in = link->out = connect_socket();
    set_nonblocking(link->in);
    set_nonblocking(link->out);
    struct epoll_event event = {.data.ptr = link, .events = EPOLLIN};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, link->in, &event) < 0)
        fail("cannot watch a connection: %s", strerror(errno));
#ifdef WITH_TLS
    if (tls != NULL) {
        link->ssl = SSL_new(tls);
        if (link->ssl == NULL || SSL_set_fd(link->ssl, link->in) != 1)
            fail("cannot begin with TLS");
        SSL_set_connect_state(link->ssl);
    }
#endif
    if (target.kind == WEBSOCKET)
        say_upgrade(link);
    else if (target.kind == LINES && (target.token != NULL || target.resume))
        say_hello(link);
    else
        opened(link);
    flush(link);
}

void stall_link(struct link *link) {
    link->stalled = true;
    epoll_ctl(epoll, EPOLL_CTL_DEL, link->in, NULL);
}

/* Waiting */

/* An acknowledgement without news serves as a heartbeat. */
static void show_life(void) {
    for (int i = 0; i < link_count; i++)
        if (links[i].state == OPEN && !links[i].stalled && now() - links[i].confirmed_at > CONFIRM_SECONDS)
            confirm(&links[i]);
}

static void look(int milliseconds) {
    static struct epoll_event found[EVENTS_AT_ONCE];
    int count = epoll_wait(epoll, found, EVENTS_AT_ONCE, milliseconds);
    for (int i = 0; i < count; i++) {
        struct link *link = found[i].data.ptr;
        /* One of two pipes, or what came before in this list, can have been the end of it. */
        if (link->state != CLOSED && !link->stalled)
            flush(link);
        if (link->state != CLOSED && !link->stalled && found[i].events & ~(unsigned)EPOLLOUT)
            receive(link);
    }
    if (target.resume)
        show_life();
}

void wait_for_events(double seconds) {
    double left = deadline - now();
    if (left <= 0)
        fail("the time is up while %s", at_work());
    if (seconds > left)
        seconds = left;
    if (seconds >= SHORT_SECONDS) {
        look((int)(1000 * seconds));
        return;
    }
    /* epoll_wait counts in milliseconds, which is too coarse for a pause between two requests. */
    struct timespec pause = {.tv_nsec = (long)(1e9 * seconds)};
    struct pollfd any = {.fd = epoll, .events = POLLIN};
    ppoll(&any, 1, &pause, NULL);
    look(0);
}

void hold_until_stdin_ends(void) {
    struct pollfd any[] = {{.fd = epoll, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    char ignored[256];
    do {
        poll(any, 2, 1000 * CONFIRM_SECONDS);
        look(0);
    } while (any[1].revents == 0 || read(STDIN_FILENO, ignored, sizeof ignored) > 0);
}

/* Leaving */

static void leave(struct link *link) {
    static const char GOODBYE[] = "{\"jsonrpc\":\"2.0\",\"method\":\"_acp-gateway/goodbye\",\"params\":{}}";
    if (link->state == OPEN && target.kind == WEBSOCKET)
        say_frame(link, CLOSE, "\x03\xe8", 2);
    else if (link->state == OPEN && target.resume)
        say(link, GOODBYE, strlen(GOODBYE));
    link->state = LEAVING;
    flush(link);
    if (target.kind == CHILD) {
        if (link->watched_for_write)
            epoll_ctl(epoll, EPOLL_CTL_DEL, link->out, NULL);
        close(link->out);
        link->out = -1;
    } else {
        shutdown(link->out, SHUT_WR);
    }
    /* A stalled link is not read, so its end would go unnoticed. */
    if (link->stalled)
        closed(link);
}

void leave_links(void) {
    int left = 0;
    for (int i = 0; i < link_count; i++)
        if (links[i].state == CONNECTING || links[i].state == OPEN)
            leave(&links[i]);
    double end = now() + LEAVE_SECONDS;
    do {
        left = 0;
        for (int i = 0; i < link_count; i++) {
            if (links[i].child > 0 && waitpid(links[i].child, NULL, WNOHANG) != 0)
                links[i].child = 0;
            left += links[i].state == LEAVING || links[i].child > 0;
        }
        if (left > 0)
            look(10);
    } while (left > 0 && now() < end);
}
