/* Connections to a relay: WebSocket, newline-delimited JSON over TCP, or the same over the pipes of a child. One
   thread, non-blocking I/O, no allocation per message. Any error ends the program with a line on stderr. */

#ifndef LOAD_LINK_H
#define LOAD_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum kind { NOWHERE, WEBSOCKET, LINES, CHILD };

/* Where to, the same for all links of a run. */
struct target {
    enum kind kind;
    /* HOST:PORT as it was given, and its parts. */
    char authority[300], host[256], port[16];
    const char *path, *subprotocol, *token;
    bool tls, resume;
    /* For a child: its arguments, ended by NULL. */
    char **command;
};

/* `CONNECTING` until the other end has said that it is there; `LEAVING` when we have said that we go. */
enum state { NOT_OPEN, CONNECTING, OPEN, LEAVING, CLOSED };

struct link {
    enum state state;
    int number;
    /* The same for a socket, two for a child. */
    int in, out;
    void *ssl;
    pid_t child;
    /* Reading has stopped: a stalled client. */
    bool stalled;
    /* The handshake of TLS waits to write, whatever else there is to say. */
    bool tls_wants_write;
    bool watched_for_write;

    /* What was received: [taken, filled) is not taken yet, and [taken, searched) has no end of a line. */
    char *buffer;
    size_t room, taken, filled, searched;
    /* The message so far, where it comes in several frames. */
    char *pieces;
    size_t pieces_room, pieces_size;
    bool in_pieces;

    /* What is to be sent: [sent, said). */
    char *outbox;
    size_t outbox_room, sent, said;

    /* Messages of either side since it is open, and on a link that resumes how many of them are confirmed. */
    uint64_t message_count, message_bytes, messages_confirmed, bytes_confirmed, sent_count, sent_confirmed;
    double confirmed_at;
};

/* Callbacks for the events of links. */
struct events {
    /* The link can be used. */
    void (*opened)(struct link *);
    /* A message has come, without its frame. It is gone when this returns. */
    void (*message)(struct link *, const char *text, size_t size);
    /* Everything that one look has brought was told. */
    void (*settled)(struct link *);
    /* In words, what is being done ("opening connections"): asked when it fails. */
    void (*describe)(char *text, size_t room);
};

/* Seconds of the monotonic clock. */
double now(void);

/* End with a line on stderr. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Memory for so many bytes, with what was in it before. */
void *grown(void *memory, size_t size);

/* To be called first: room for `count` links, none of them open. `seconds` from now on the whole run is over. */
struct link *make_links(int count, const struct target *target, const struct events *events, double seconds);

void open_link(struct link *link);

/* Send a message, or as much of it as can be now. The rest goes by itself. */
void send_message(struct link *link, const char *text, size_t size);

/* Read no more from it. */
void stall_link(struct link *link);

/* Wait until something has happened, for at most so many seconds, and tell it. */
void wait_for_events(double seconds);

/* Keep the links, however long it takes, until stdin ends. */
void hold_until_stdin_ends(void);

/* Say goodbye on all of them as is proper, and end the children. */
void leave_links(void);

#endif
