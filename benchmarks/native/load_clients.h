/* Clients of an agent: requests, recognition of answers, and setup before the measurement.

   An update is a message with `"session/update"` near its beginning, a response one with the id of a request. Messages
   are not parsed any further, so that this program is never the bottleneck. */

#ifndef LOAD_CLIENTS_H
#define LOAD_CLIENTS_H

#include "load_link.h"

enum {
    LONGEST_SESSION = 256,
    MOST_CONNECTIONS = 20000,
    /* All ids have as many digits, and requests of one kind the same size. */
    FIRST_ID = 1000001,
    ID_DIGITS = 7,
};

/* Seconds to wait if nothing is due. */
#define AS_LONG_AS_IT_TAKES 1.0

/* Options of the command line. */
struct options {
    long count, batch, size, pace_us, connections, pause_us, every_us, window, viewers, stalled, initialize,
        concurrency, watch;
    double timeout;
    const char *method, *samples, *join, *cwd;
};

extern struct options options;
extern struct target target;

/* Setup steps of a client before the measurement. */
enum plan { CONNECT, INITIALIZE, OPEN_SESSION, JOIN_SESSION };
enum stage { TO_OPEN, OPENING, INITIALIZING, BEGINNING, READY };

struct client {
    struct link *link;
    enum plan plan;
    enum stage stage;
    /* Whether its agent has said that sessions can be closed. */
    bool closes;
    /* As in JSON, without quotes. */
    char session[LONGEST_SESSION];
    uint64_t first_id, next_id, answers, updates, update_bytes;
    double asked_at, answered_at;
    /* Where requests are made one by one: since when the one under way counts, and when the next one is due. */
    double since, due;
};

extern struct client *clients;
extern int client_count;

/* Description of the current phase, for error messages. */
extern const char *phase;

/* Whether updates are of a history, and may be of any size. */
extern bool replaying;

/* Whose answers are told to whom, once a client is ready. */
extern void (*on_answer)(struct client *, const char *text, size_t size);

/* Called when a client has as many updates as were prompted for. */
extern void (*on_all_updates)(struct client *);

/* Called when everything that one look has brought was told. */
extern void (*on_settled)(struct client *);

void make_clients(long count);

/* Open the clients from `from` up to `to`, some at a time, each as far as the plan says. */
void get_ready(int from, int to, enum plan plan);

/* Close the opened sessions, if the agent supports it, so that they don't disturb the next measurement of the same
   agent and relay. */
void close_sessions(void);

void ask(struct client *client, const char *method, const char *params);
void prompt(struct client *client, long count);
void load_session(struct client *client, const char *session);

/* Text for a moment. */
const char *written(const char *format, ...) __attribute__((format(printf, 1, 2)));

const char *find(const char *text, size_t size, const char *what);

#endif
