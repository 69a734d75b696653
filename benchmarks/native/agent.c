/* An ACP agent on stdin and stdout, too fast to be the bottleneck of a measurement. One thread, no libraries.

   The text of a prompt is three numbers, "COUNT BATCH SIZE": COUNT updates of exactly SIZE bytes each (the newline not
   counted), BATCH of them per write, and then the end of the turn. An optional fourth number is the interval between
   writes in microseconds; without it, the agent writes at full speed. Concurrent turns alternate write by write.
   `_bench/echo`, `_bench/sink` and all other requests get an empty result at once. */

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_SIZE = 256 * 1024,
    MOST_TURNS = 1024,
    LONGEST_ID = 256,
    LONGEST_SESSION = 128,
    /* Maximum bytes of one write, so that a mistyped prompt doesn't exhaust memory. */
    LARGEST_BATCH = 64 * 1024 * 1024,
    /* Polling stdin costs as much as a small write. */
    WRITES_PER_LOOK = 16,
    /* Microseconds. */
    LONGEST_PACE = 10 * 1000 * 1000,
};

static const char HEAD[] = "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"%.*s\","
                           "\"update\":{\"sessionUpdate\":\"agent_message_chunk\","
                           "\"content\":{\"type\":\"text\",\"text\":\"";
static const char TAIL[] = "\"}}}}\n";

/* A piece of the line that is being read. */
struct slice {
    const char *start;
    size_t size;
};

struct turn {
    char id[LONGEST_ID], session[LONGEST_SESSION];
    size_t id_size, session_size;
    /* BATCH updates after one another, made once and written again and again. */
    char *batch;
    size_t line_size;
    long remaining, at_once;
    /* Nanoseconds between two writes, and when the next one is due. */
    long long pace, due;
};

static struct turn turns[MOST_TURNS];
static int running;

static void fail(const char *what) {
    fprintf(stderr, "agent: %s: %s\n", what, strerror(errno));
    exit(1);
}

static long long nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000LL * time.tv_sec + time.tv_nsec;
}

static void put(const char *text, size_t size) {
    while (size > 0) {
        ssize_t written = write(STDOUT_FILENO, text, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            /* The reader has closed the pipe, which is how a measurement ends. */
            exit(errno == EPIPE ? 0 : 1);
        text += written;
        size -= (size_t)written;
    }
}

/* Reading JSON: only as much as is needed, and strings, which can be megabytes, with memchr. What is not JSON is
   skipped somehow; nothing is read behind the end. */

static const char *after_string(const char *at, const char *end) {
    for (at++; (at = memchr(at, '"', (size_t)(end - at))) != NULL; at++) {
        const char *before = at;
        while (before[-1] == '\\')
            before--;
        /* An even number of backslashes escape one another, and not the quote. The opening quote ends the way back. */
        if ((at - before) % 2 == 0)
            return at + 1;
    }
    return end;
}

static const char *after_value(const char *at, const char *end) {
    int depth = 0;
    while (at < end) {
        if (*at == '"') {
            at = after_string(at, end);
        } else if (*at == '{' || *at == '[') {
            depth++, at++;
        } else if (*at == '}' || *at == ']') {
            if (depth-- == 0)
                return at;
            at++;
        } else if (depth == 0 && *at == ',') {
            return at;
        } else {
            at++;
        }
        if (depth == 0 && at < end && (*at == ',' || *at == '}' || *at == ']'))
            return at;
    }
    return end;
}

static const char *after_spaces(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r'))
        at++;
    return at;
}

/* Find the raw values of some members of an object; parsing stops behind the last one. */
static void find_members(struct slice object, const char *const names[], struct slice values[], int count) {
    const char *at = after_spaces(object.start, object.start + object.size), *end = object.start + object.size;
    int missing = count;
    memset(values, 0, sizeof values[0] * (size_t)count);
    if (at == end || *at != '{')
        return;
    for (at++; missing > 0 && (at = after_spaces(at, end)) < end && *at == '"'; at++) {
        const char *name = at + 1;
        at = after_string(at, end);
        size_t name_size = (size_t)(at - name) - 1;
        at = after_spaces(at, end);
        if (at == end || *at != ':')
            return;
        const char *value = after_spaces(at + 1, end);
        at = after_value(value, end);
        for (int i = 0; i < count; i++) {
            if (strlen(names[i]) == name_size && memcmp(names[i], name, name_size) == 0) {
                size_t size = (size_t)(at - value);
                while (size > 0 && (value[size - 1] == ' ' || value[size - 1] == '\t'))
                    size--;
                values[i] = (struct slice){value, size};
                missing--;
            }
        }
        if (at == end || *at != ',')
            return;
    }
}

static struct slice find_member(struct slice object, const char *name) {
    struct slice value;
    find_members(object, &name, &value, 1);
    return value;
}

static bool is_string(struct slice value, const char *text) {
    size_t size = strlen(text);
    return value.size == size + 2 && *value.start == '"' && memcmp(value.start + 1, text, size) == 0;
}

/* The text between the quotes, with escapes. */
static struct slice unquoted(struct slice value) {
    if (value.size < 2 || *value.start != '"')
        return (struct slice){NULL, 0};
    return (struct slice){value.start + 1, value.size - 2};
}

/* Answering */

static void answer(const char *id, size_t id_size, const char *outcome) {
    char line[LONGEST_ID + 512];
    int size = snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%.*s,%s}\n", (int)id_size, id, outcome);
    put(line, (size_t)size);
}

static void end_turn(struct turn *turn, const char *reason) {
    char outcome[64];
    snprintf(outcome, sizeof outcome, "\"result\":{\"stopReason\":\"%s\"}", reason);
    answer(turn->id, turn->id_size, outcome);
    free(turn->batch);
    *turn = turns[--running];
}

static void make_batch(struct turn *turn) {
    size_t size = turn->line_size, tail = strlen(TAIL);
    if ((turn->batch = malloc(size * (size_t)turn->at_once)) == NULL)
        fail("cannot hold a write");
    int head = snprintf(turn->batch, size, HEAD, (int)turn->session_size, turn->session);
    memset(turn->batch + head, 'x', size - (size_t)head - tail);
    memcpy(turn->batch + size - tail, TAIL, tail);
    for (long i = 1; i < turn->at_once; i++)
        memcpy(turn->batch + (size_t)i * size, turn->batch, size);
}

/* The numbers of a prompt are in the first block of text. */
static bool read_prompt(struct slice params, struct turn *turn, long *size) {
    struct slice prompt = find_member(params, "prompt");
    if (prompt.size == 0 || *prompt.start != '[')
        return false;
    const char *block = after_spaces(prompt.start + 1, prompt.start + prompt.size);
    size_t room = (size_t)(prompt.start + prompt.size - block);
    struct slice text = unquoted(find_member((struct slice){block, room}, "text"));
    char numbers[96];
    if (text.size >= sizeof numbers)
        return false;
    snprintf(numbers, sizeof numbers, "%.*s", (int)text.size, text.start);
    long pace = 0;
    if (sscanf(numbers, "%ld %ld %ld %ld", &turn->remaining, &turn->at_once, size, &pace) < 3)
        return false;
    turn->pace = 1000LL * pace;
    turn->due = pace > 0 ? nanoseconds() : 0;
    return turn->remaining >= 0 && turn->at_once > 0 && *size > 0 && pace >= 0 && pace <= LONGEST_PACE &&
           *size <= LARGEST_BATCH && turn->at_once <= LARGEST_BATCH / *size;
}

static void begin_turn(struct slice id, struct slice params) {
    struct slice session = unquoted(find_member(params, "sessionId"));
    struct turn *turn = &turns[running];
    long size;
    if (session.size > LONGEST_SESSION || !read_prompt(params, turn, &size) ||
        (size_t)size < strlen(HEAD) + session.size + strlen(TAIL) || running == MOST_TURNS - 1) {
        answer(id.start, id.size,
               "\"error\":{\"code\":-32602,\"message\":\"a prompt is COUNT BATCH SIZE [PACE], SIZE from 200\"}");
        return;
    }
    memcpy(turn->id, id.start, id.size);
    memcpy(turn->session, session.start, session.size);
    turn->id_size = id.size;
    turn->session_size = session.size;
    turn->line_size = (size_t)size + 1;
    turn->batch = NULL;
    running++;
    if (turn->remaining == 0)
        end_turn(turn, "end_turn");
    else
        make_batch(turn);
}

static void cancel_turns(struct slice params) {
    struct slice session = unquoted(find_member(params, "sessionId"));
    for (int i = running - 1; i >= 0; i--)
        if (turns[i].session_size == session.size && memcmp(turns[i].session, session.start, session.size) == 0)
            end_turn(&turns[i], "cancelled");
}

static void handle(const char *line, size_t size) {
    static const char *const NAMES[] = {"method", "id"};
    static int sessions;
    struct slice message = {line, size}, values[2];
    find_members(message, NAMES, values, 2);
    struct slice method = values[0], id = values[1];
    char outcome[256];
    if (method.size == 0)
        return;
    if (id.size == 0) {
        if (is_string(method, "session/cancel"))
            cancel_turns(find_member(message, "params"));
    } else if (id.size > LONGEST_ID) {
        answer("null", 4, "\"error\":{\"code\":-32600,\"message\":\"the id is too long\"}");
    } else if (is_string(method, "session/prompt")) {
        begin_turn(id, find_member(message, "params"));
    } else if (is_string(method, "session/new")) {
        snprintf(outcome, sizeof outcome, "\"result\":{\"sessionId\":\"s-%d-%d\"}", getpid(), ++sessions);
        answer(id.start, id.size, outcome);
    } else if (is_string(method, "session/list")) {
        answer(id.start, id.size, "\"result\":{\"sessions\":[]}");
    } else if (is_string(method, "initialize")) {
        answer(id.start, id.size,
               "\"result\":{\"protocolVersion\":1,\"agentCapabilities\":{\"loadSession\":true,"
               "\"sessionCapabilities\":{\"list\":{},\"resume\":{},\"close\":{}}},\"authMethods\":[]}");
    } else {
        answer(id.start, id.size, "\"result\":{}");
    }
}

/* Read once, and handle all complete lines. */
static void take_input(void) {
    static char *buffer;
    static size_t room, filled, searched;
    if (room - filled < READ_SIZE && (buffer = realloc(buffer, room = 2 * room + READ_SIZE)) == NULL)
        fail("cannot hold a line");
    ssize_t count = read(STDIN_FILENO, buffer + filled, room - filled);
    if (count < 0 && errno == EINTR)
        return;
    if (count <= 0)
        exit(0);
    filled += (size_t)count;
    char *line = buffer, *end;
    while ((end = memchr(buffer + searched, '\n', filled - searched)) != NULL) {
        handle(line, (size_t)(end - line));
        line = end + 1;
        searched = (size_t)(line - buffer);
    }
    filled -= (size_t)(line - buffer);
    memmove(buffer, line, filled);
    searched = filled;
}

/* Write once for each turn in which a write is due; return the number of writes. */
static int write_each(void) {
    int writes = 0;
    for (int i = 0; i < running;) {
        struct turn *turn = &turns[i];
        if (turn->pace > 0 && nanoseconds() < turn->due) {
            i++;
            continue;
        }
        long count = turn->remaining < turn->at_once ? turn->remaining : turn->at_once;
        put(turn->batch, (size_t)count * turn->line_size);
        turn->remaining -= count;
        turn->due += turn->pace;
        writes++;
        if (turn->remaining == 0)
            /* Moves the last turn to this index, which is handled next. */
            end_turn(turn, "end_turn");
        else
            i++;
    }
    return writes;
}

/* Nanoseconds until the next write is due; 0 for a turn without an interval. */
static long long idle(void) {
    long long soonest = 0, time = 0;
    for (int i = 0; i < running; i++) {
        if (turns[i].pace == 0)
            return 0;
        time = time == 0 ? nanoseconds() : time;
        long long left = turns[i].due > time ? turns[i].due - time : 0;
        soonest = i == 0 || left < soonest ? left : soonest;
    }
    return soonest;
}

int main(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        long long left = idle();
        struct timespec rest = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        while (running == 0 || ppoll(&input, 1, &rest, NULL) > 0) {
            take_input();
            rest = (struct timespec){0};
        }
        for (int writes = 0, more = 1; writes < WRITES_PER_LOOK && more > 0; writes += more)
            more = write_each();
    }
}
