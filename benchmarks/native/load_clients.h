/* Clients of an agent: what they ask, what of the answers is read, and how they get ready before anything is measured.

   What is counted: an update is a message with `"session/update"` near its beginning, a response one with the id of a
   request. Messages are not parsed any further, so that what is measured is never this program. */

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

/* Seconds: nothing else is due. */
#define AS_LONG_AS_IT_TAKES 1.0

/* What the command line has said. */
struct options {
    long count, batch, size, pace_us, connections, pause_us, every_us, window, viewers, stalled, initialize,
        concurrency, watch;
    double timeout;
    const char *method, *samples, *join, *cwd;
};

extern struct options options;
extern struct target target;

/* How far a client goes before anything is measured. */
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

/* What is being done, in words, for the line that says why it failed. */
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

/* Close the sessions that were opened, where the agent can: it and whoever keeps their histories are to be measured
   again, and what stays would be in the way of the next one. */
void close_sessions(void);

void ask(struct client *client, const char *method, const char *params);
void prompt(struct client *client, long count);
void load_session(struct client *client, const char *session);

/* Text for a moment. */
const char *written(const char *format, ...) __attribute__((format(printf, 1, 2)));

const char *find(const char *text, size_t size, const char *what);

#endif
