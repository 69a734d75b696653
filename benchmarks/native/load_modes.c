/* See load_modes.h. */

#define _GNU_SOURCE
#include "load_modes.h"

#include "load_clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    /* What may be on its way to the gateway over a link that resumes: 8 MiB, less what was asked before the upload. */
    RESUME_WINDOW = 8 * 1024 * 1024 - 64 * 1024,
};

/* What something has cost: seconds, and seconds of a processor of this program and of the one that is watched. */
struct cost {
    double seconds, own, watched;
};

static double read_clock(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) < 0)
        fail("the process that was watched, %ld, has ended", options.watch);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Relative to an arbitrary start. */
static struct cost cost_so_far(void) {
    clockid_t clock;
    if (options.watch != 0 && clock_getcpuclockid((pid_t)options.watch, &clock) != 0)
        fail("there is no process %ld", options.watch);
    return (struct cost){now(), read_clock(CLOCK_PROCESS_CPUTIME_ID), options.watch != 0 ? read_clock(clock) : 0};
}

static struct cost cost_since(struct cost then) {
    struct cost cost = cost_so_far();
    return (struct cost){cost.seconds - then.seconds, cost.own - then.own, cost.watched - then.watched};
}

/* The beginning of what a mode prints. */
static void print_cost(const char *mode, struct cost cost) {
    printf("{\"mode\":\"%s\",\"seconds\":%.6f,\"own_processor\":%.6f", mode, cost.seconds, cost.own);
    if (options.watch != 0)
        printf(",\"watched_processor\":%.6f", cost.watched);
}

/* What is still to come before the measurement is over: answers, and the last updates of viewers. */
static int unanswered;

static void note_answer(struct client *client, const char *text, size_t size) {
    (void)client, (void)text, (void)size;
    unanswered--;
}

static void expect_updates(const struct client *client) {
    if (client->updates != (uint64_t)options.count)
        fail("connection %d got %llu of %ld updates", client->link->number, (unsigned long long)client->updates,
             options.count);
}

void stream(void) {
    make_clients(options.connections);
    get_ready(0, client_count, OPEN_SESSION);
    phase = "streaming";
    on_answer = note_answer;
    unanswered = client_count;
    struct cost begun = cost_so_far();
    for (int i = 0; i < client_count; i++)
        prompt(&clients[i], options.count);
    while (unanswered > 0)
        wait_for_events(AS_LONG_AS_IT_TAKES);
    struct cost cost = cost_since(begun);
    uint64_t messages = 0, bytes = 0;
    for (int i = 0; i < client_count; i++) {
        expect_updates(&clients[i]);
        messages += clients[i].updates;
        bytes += clients[i].update_bytes;
    }
    print_cost("stream", cost);
    printf(",\"connections\":%d,\"messages\":%llu,\"bytes\":%llu}\n", client_count, (unsigned long long)messages,
           (unsigned long long)bytes);
}

/* Round trips */

static float *samples;
static long sample_count;

static void ask_for_echo(struct client *client) {
    if (strcmp(options.method, "session/prompt") == 0)
        prompt(client, 0);
    else
        ask(client, options.method, written("{\"sessionId\":\"%s\"}", client->session));
    client->since = client->asked_at;
    if (options.every_us > 0)
        client->due += 1e-6 * (double)options.every_us;
}

/* Requests are made so long after the answer, or so long after one another. There one that was due before the answer to
   the last one was there counts from then: what had to wait for a slow answer is slow itself, and is not just fewer. */
static void note_echo(struct client *client, const char *text, size_t size) {
    (void)text, (void)size;
    samples[sample_count++] = (float)(1e6 * (client->answered_at - client->since));
    if (options.every_us == 0)
        client->due = client->answered_at + 1e-6 * (double)options.pause_us;
    double due = client->due;
    if (client->next_id == client->first_id + (uint64_t)options.count) {
        unanswered--;
    } else if (due <= client->answered_at) {
        ask_for_echo(client);
        if (options.every_us > 0)
            client->since = due;
    }
}

/* Ask for what is due, and say in how many seconds the next is. */
static double ask_when_due(void) {
    double soonest = AS_LONG_AS_IT_TAKES, time = now();
    for (int i = 0; i < client_count; i++) {
        struct client *client = &clients[i];
        bool waits = client->answered_at > client->asked_at;
        if (!waits || client->next_id == client->first_id + (uint64_t)options.count)
            continue;
        double left = client->due - time;
        if (left <= 0)
            ask_for_echo(client);
        else if (left < soonest)
            soonest = left;
    }
    return soonest;
}

static int in_order(const void *one, const void *other) {
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static double percentile(int percent) {
    long place = (sample_count * percent + 99) / 100 - 1;
    return samples[place < 0 ? 0 : place];
}

static void save_samples(void) {
    FILE *file = fopen(options.samples, "w");
    if (file == NULL)
        fail("cannot write %s", options.samples);
    for (long i = 0; i < sample_count; i++)
        fprintf(file, "%.2f\n", (double)samples[i]);
    if (fclose(file) != 0)
        fail("cannot write %s", options.samples);
}

void echo(void) {
    make_clients(options.connections);
    samples = grown(NULL, sizeof *samples * (size_t)options.count * (size_t)options.connections);
    get_ready(0, client_count, OPEN_SESSION);
    phase = "measuring round trips";
    on_answer = note_echo;
    unanswered = client_count;
    struct cost begun = cost_so_far();
    for (int i = 0; i < client_count; i++) {
        clients[i].first_id = clients[i].next_id;
        clients[i].due = now();
        ask_for_echo(&clients[i]);
    }
    while (unanswered > 0)
        wait_for_events(options.pause_us > 0 || options.every_us > 0 ? ask_when_due() : AS_LONG_AS_IT_TAKES);
    struct cost cost = cost_since(begun);
    if (options.samples != NULL)
        save_samples();
    qsort(samples, (size_t)sample_count, sizeof *samples, in_order);
    print_cost("echo", cost);
    printf(",\"connections\":%d,\"count\":%ld,\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n",
           client_count, sample_count, percentile(50), percentile(90), percentile(99), percentile(100));
}

/* Uploads */

static char *piece;
static long sent;
/* Messages before the upload, which are small. */
static uint64_t sent_before;

static bool may_send(const struct client *client) {
    uint64_t confirmed = client->link->sent_confirmed;
    uint64_t unconfirmed = client->link->sent_count - (confirmed > sent_before ? confirmed : sent_before);
    return sent < options.count && sent - (options.count - unanswered) < options.window &&
           (!target.resume || unconfirmed == 0 || (unconfirmed + 1) * (uint64_t)options.size <= RESUME_WINDOW);
}

static void send_pieces(struct client *client) {
    static const char NAME[] = "\"id\":";
    for (; may_send(client); sent++) {
        char digits[ID_DIGITS + 1];
        snprintf(digits, sizeof digits, "%07llu", (unsigned long long)client->next_id++ % 10000000);
        memcpy(strstr(piece, NAME) + strlen(NAME), digits, ID_DIGITS);
        send_message(client->link, piece, (size_t)options.size);
    }
}

void upload(void) {
    static const char TAIL[] = "\"}}";
    make_clients(1);
    get_ready(0, 1, OPEN_SESSION);
    const char *head = written("{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"_bench/sink\","
                               "\"params\":{\"sessionId\":\"%s\",\"data\":\"",
                               FIRST_ID, clients[0].session);
    if (options.size < (long)(strlen(head) + strlen(TAIL)))
        fail("an upload has at least %zu bytes", strlen(head) + strlen(TAIL));
    piece = memset(grown(NULL, (size_t)options.size + 1), 'x', (size_t)options.size);
    memcpy(piece, head, strlen(head));
    memcpy(piece + options.size - strlen(TAIL), TAIL, sizeof TAIL);
    phase = "uploading";
    on_answer = note_answer;
    on_settled = send_pieces;
    unanswered = (int)options.count;
    sent_before = clients[0].link->sent_count;
    struct cost begun = cost_so_far();
    send_pieces(&clients[0]);
    while (unanswered > 0)
        wait_for_events(AS_LONG_AS_IT_TAKES);
    struct cost cost = cost_since(begun);
    on_settled = NULL;
    print_cost("upload", cost);
    printf(",\"messages\":%ld,\"bytes\":%ld}\n", options.count, options.count * options.size);
}

/* Viewers */

static void note_all_updates(struct client *client) {
    (void)client;
    unanswered--;
}

void fanout(void) {
    bool joins = strcmp(options.join, "load") == 0;
    if (!joins && strcmp(options.join, "none") != 0)
        fail("--join is load or none, not %s", options.join);
    if (options.viewers < 0 || options.stalled < 0 || options.stalled > options.viewers)
        fail("of %ld viewers %ld can't be stalled", options.viewers, options.stalled);
    make_clients(1 + options.viewers);
    get_ready(0, 1, OPEN_SESSION);
    get_ready(1, client_count, joins ? JOIN_SESSION : CONNECT);
    int reading = client_count - (int)options.stalled;
    for (int i = reading; i < client_count; i++)
        stall_link(clients[i].link);
    phase = "sending to all viewers";
    on_answer = note_answer;
    on_all_updates = note_all_updates;
    unanswered = 1 + reading;
    struct cost begun = cost_so_far();
    prompt(&clients[0], options.count);
    while (unanswered > 0)
        wait_for_events(AS_LONG_AS_IT_TAKES);
    struct cost cost = cost_since(begun);
    uint64_t messages = 0, bytes = 0;
    for (int i = 0; i < reading; i++) {
        expect_updates(&clients[i]);
        messages += clients[i].updates;
        bytes += clients[i].update_bytes;
    }
    print_cost("fanout", cost);
    printf(",\"driver_seconds\":%.6f,\"viewers\":%ld,\"stalled\":%ld,\"messages\":%llu,\"bytes\":%llu}\n",
           clients[0].answered_at - begun.seconds, options.viewers, options.stalled, (unsigned long long)messages,
           (unsigned long long)bytes);
}

void idle(void) {
    make_clients(options.connections);
    struct cost begun = cost_so_far();
    get_ready(0, client_count, options.initialize ? INITIALIZE : CONNECT);
    print_cost("idle", cost_since(begun));
    printf(",\"connections\":%d}\n", client_count);
    fflush(stdout);
    phase = "holding connections";
    hold_until_stdin_ends();
}

/* History */

static bool truncated;

static void note_replay(struct client *client, const char *text, size_t size) {
    truncated = find(text, size, "\"truncated\"") != NULL;
    note_answer(client, text, size);
}

void replay(void) {
    make_clients(2);
    struct client *writer = &clients[0], *reader = &clients[1];
    get_ready(0, 1, OPEN_SESSION);
    phase = "streaming what is to be replayed";
    on_answer = note_answer;
    unanswered = 1;
    prompt(writer, options.count);
    while (unanswered > 0)
        wait_for_events(AS_LONG_AS_IT_TAKES);
    expect_updates(writer);
    get_ready(1, 2, INITIALIZE);
    phase = "replaying";
    replaying = true;
    on_answer = note_replay;
    unanswered = 1;
    struct cost begun = cost_so_far();
    load_session(reader, writer->session);
    while (unanswered > 0)
        wait_for_events(AS_LONG_AS_IT_TAKES);
    struct cost cost = cost_since(begun);
    print_cost("replay", cost);
    printf(",\"replayed\":%llu,\"bytes\":%llu,\"truncated\":%s}\n", (unsigned long long)reader->updates,
           (unsigned long long)reader->update_bytes, truncated ? "true" : "false");
}

/* Beginning */

static long resident_kb(pid_t process) {
    char path[64], line[256];
    long kilobytes = 0;
    snprintf(path, sizeof path, "/proc/%d/status", process);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        sscanf(line, "VmRSS: %ld", &kilobytes);
    if (file != NULL)
        fclose(file);
    return kilobytes;
}

/* Of a process and all that it has started. */
static long tree_kb(pid_t process) {
    char path[64];
    int child;
    long kilobytes = resident_kb(process);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", process, process);
    FILE *file = fopen(path, "r");
    while (file != NULL && fscanf(file, "%d", &child) == 1)
        kilobytes += tree_kb(child);
    if (file != NULL)
        fclose(file);
    return kilobytes;
}

void first(void) {
    if (target.kind != CHILD)
        fail("first is for --exec");
    make_clients(1);
    double begun = now();
    get_ready(0, 1, INITIALIZE);
    pid_t child = clients[0].link->child;
    printf("{\"mode\":\"first\",\"seconds\":%.6f,\"resident_kb\":%ld,\"tree_kb\":%ld}\n",
           clients[0].answered_at - begun, resident_kb(child), tree_kb(child));
}
