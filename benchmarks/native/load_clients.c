/* See load_clients.h. */

#define _GNU_SOURCE
#include "load_clients.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum {
    /* Names are near the beginning of a message, or after its params, near its end. */
    NEAR = 200,
    LONGEST_QUOTE = 500,
};

struct client *clients;
int client_count;
const char *phase = "beginning";
bool replaying;
void (*on_answer)(struct client *, const char *text, size_t size);
void (*on_all_updates)(struct client *);
void (*on_settled)(struct client *);

/* So many of them. */
static int ready;

/* Reading messages */

const char *find(const char *text, size_t size, const char *what) {
    return memmem(text, size, what, strlen(what));
}

static const char *find_near_ends(const char *text, size_t size, const char *what) {
    const char *found = find(text, size < NEAR ? size : NEAR, what);
    return found != NULL || size < NEAR ? found : find(text + size - NEAR, NEAR, what);
}

static bool is_update(const char *text, size_t size) {
    static const char NAME[] = "\"session/update\"";
    enum { NAME_SIZE = sizeof NAME - 1 };
    /* Try the position of the previous message first: one comparison instead of a search. */
    static size_t place;
    if (place + NAME_SIZE > size || memcmp(text + place, NAME, NAME_SIZE) != 0) {
        const char *found = find(text, size < NEAR ? size : NEAR, NAME);
        if (found == NULL)
            return false;
        place = (size_t)(found - text);
    }
    if (size == (size_t)options.size)
        return true;
    /* The gateway's own updates, of a prompt or of a truncated history, are not the agent's. Live updates can have
       another size if a relay has serialized them again. */
    return !replaying && find(text, size < 3 * NEAR ? size : 3 * NEAR, "\"user_message_chunk\"") == NULL;
}

/* Whether it is a response, and to which request; responses that are errors end the program. */
static bool read_response(const struct client *client, const char *text, size_t size, uint64_t *id) {
    const char *at = find_near_ends(text, size, "\"id\""), *end = text + size;
    if (at == NULL || find(text, size < NEAR ? size : NEAR, "\"method\"") != NULL)
        return false;
    for (at += strlen("\"id\""); at < end && (isspace((unsigned char)*at) || *at == ':');)
        at++;
    bool number = at < end && isdigit((unsigned char)*at);
    for (*id = 0; at < end && isdigit((unsigned char)*at); at++)
        *id = 10 * *id + (uint64_t)(*at - '0');
    bool ours = client->plan != CONNECT && *id >= client->first_id && *id < client->next_id;
    if (find_near_ends(text, size, "\"result\"") != NULL)
        return number && ours;
    if (find(text, size, "\"error\"") != NULL && (ours || !number))
        fail("connection %d got an error while %s: %.*s", client->link->number, phase,
             (int)(size < LONGEST_QUOTE ? size : LONGEST_QUOTE), text);
    return false;
}

/* Asking */

const char *written(const char *format, ...) {
    static char text[2048];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (size >= (int)sizeof text)
        fail("a request is too long");
    return text;
}

void ask(struct client *client, const char *method, const char *params) {
    char request[2304];
    int size = snprintf(request, sizeof request, "{\"jsonrpc\":\"2.0\",\"id\":%llu,\"method\":\"%s\",\"params\":%s}",
                        (unsigned long long)client->next_id++, method, params);
    if (size >= (int)sizeof request)
        fail("a request is too long: %s", method);
    client->asked_at = now();
    send_message(client->link, request, (size_t)size);
}

void prompt(struct client *client, long count) {
    ask(client, "session/prompt",
        written("{\"sessionId\":\"%s\",\"prompt\":[{\"type\":\"text\",\"text\":\"%ld %ld %ld %ld\"}]}", client->session,
                count, options.batch, options.size, options.pace_us));
}

void load_session(struct client *client, const char *session) {
    ask(client, "session/load",
        written("{\"sessionId\":\"%s\",\"cwd\":\"%s\",\"mcpServers\":[]}", session, options.cwd));
}

/* Setup: each client goes through the steps of its plan, a limited number of clients at a time. */

static void next_stage(struct client *client) {
    static const char HELLO[] = "{\"protocolVersion\":1,\"clientCapabilities\":{}}";
    client->stage++;
    if (client->stage == INITIALIZING && client->plan >= INITIALIZE) {
        ask(client, "initialize", HELLO);
    } else if (client->stage == BEGINNING && client->plan == OPEN_SESSION) {
        ask(client, "session/new", written("{\"cwd\":\"%s\",\"mcpServers\":[]}", options.cwd));
    } else if (client->stage == BEGINNING && client->plan == JOIN_SESSION) {
        load_session(client, clients[0].session);
    } else {
        client->stage = READY;
        ready++;
    }
}

static void note_session(struct client *client, const char *text, size_t size) {
    static const char NAME[] = "\"sessionId\"";
    const char *at = find(text, size, NAME), *end = text + size;
    if (at != NULL && (at = memchr(at + strlen(NAME), '"', (size_t)(end - at) - strlen(NAME))) != NULL) {
        const char *closing = memchr(at + 1, '"', (size_t)(end - at) - 1);
        if (closing != NULL && closing - at <= LONGEST_SESSION)
            memcpy(client->session, at + 1, (size_t)(closing - at) - 1);
    }
    if (client->session[0] == '\0')
        fail("connection %d got a session without an id: %.*s", client->link->number,
             (int)(size < LONGEST_QUOTE ? size : LONGEST_QUOTE), text);
}

static void opened(struct link *link) {
    next_stage(&clients[link->number]);
}

static void got_message(struct link *link, const char *text, size_t size) {
    struct client *client = &clients[link->number];
    uint64_t id;
    if (is_update(text, size)) {
        client->update_bytes += size;
        if (++client->updates == (uint64_t)options.count && on_all_updates != NULL)
            on_all_updates(client);
    } else if (read_response(client, text, size, &id)) {
        client->answered_at = now();
        client->answers++;
        if (client->stage == READY) {
            on_answer(client, text, size);
            return;
        }
        if (client->stage == INITIALIZING)
            client->closes = find(text, size, "\"close\"") != NULL;
        if (client->stage == BEGINNING && client->plan == OPEN_SESSION)
            note_session(client, text, size);
        next_stage(client);
    }
}

static void settled(struct link *link) {
    if (on_settled != NULL)
        on_settled(&clients[link->number]);
}

static void describe(char *text, size_t room) {
    uint64_t updates = 0, answers = 0;
    for (int i = 0; i < client_count; i++) {
        updates += clients[i].updates;
        answers += clients[i].answers;
    }
    snprintf(text, room, "%s (%d of %d connections are ready; %llu answers and %llu updates have come)", phase, ready,
             client_count, (unsigned long long)answers, (unsigned long long)updates);
}

void make_clients(long count) {
    static const struct events EVENTS = {opened, got_message, settled, describe};
    if (count < 1 || count > MOST_CONNECTIONS)
        fail("%ld connections: there can be 1 to %d", count, MOST_CONNECTIONS);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    client_count = (int)count;
    clients = memset(grown(NULL, sizeof *clients * (size_t)count), 0, sizeof *clients * (size_t)count);
    struct link *links = make_links(client_count, &target, &EVENTS, options.timeout);
    for (int i = 0; i < client_count; i++) {
        clients[i].link = &links[i];
        clients[i].first_id = clients[i].next_id = FIRST_ID;
    }
}

void get_ready(int from, int to, enum plan plan) {
    phase = "opening connections";
    for (int next = from; ready < to;) {
        for (; next < to && next - ready < options.concurrency; next++) {
            clients[next].plan = plan;
            clients[next].stage = OPENING;
            open_link(clients[next].link);
        }
        if (ready < to)
            wait_for_events(AS_LONG_AS_IT_TAKES);
    }
}

/* Leaving */

static int to_close;

static void note_closed(struct client *client, const char *text, size_t size) {
    (void)client, (void)text, (void)size;
    to_close--;
}

void close_sessions(void) {
    phase = "closing sessions";
    on_answer = note_closed;
    on_all_updates = NULL;
    on_settled = NULL;
    for (int i = 0; i < client_count; i++) {
        if (clients[i].plan != OPEN_SESSION || !clients[i].closes)
            continue;
        to_close++;
        ask(&clients[i], "session/close", written("{\"sessionId\":\"%s\"}", clients[i].session));
    }
    while (to_close > 0)
        wait_for_events(AS_LONG_AS_IT_TAKES);
}
