/* The load generator: one process per measurement; prints one JSON object. Without arguments it prints its usage. */

#define _GNU_SOURCE
#include "load_clients.h"
#include "load_modes.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] =
    "usage: load MODE WHERE [options]\n"
    "WHERE:  --ws HOST:PORT/PATH | --lines HOST:PORT | --exec -- COMMAND [ARGUMENT...]   (at the end)\n"
    "        --tls, --subprotocol NAME, --resume; a token is taken from LOAD_TOKEN\n"
    "all:    --timeout SECONDS (60), --cwd PATH (HOME), --concurrency N (32 connections being opened at a time),\n"
    "        --watch PID (a process, to tell how many seconds of a processor it uses in that time)\n"
    "MODE:   stream --count N --batch B --size S [--connections K]\n"
    "        echo --count N [--connections K] [--pause-us U | --every-us U] [--method _bench/echo|session/prompt]\n"
    "             [--samples FILE]     (with --every-us what waited for an answer counts from when it was due)\n"
    "        upload --count N --size S [--window 4]\n"
    "        fanout --viewers V --count N --batch B --size S [--pace-us U] [--join load|none] [--stalled M]\n"
    "        idle --connections K [--initialize 0|1]     until stdin ends\n"
    "        replay --count N --batch B --size S\n"
    "        first                                       with --exec";

struct options options = {.count = 1000, .batch = 1, .size = 200, .connections = 1, .window = 4, .viewers = 1,
                          .initialize = 1, .concurrency = 32, .timeout = 60, .method = "_bench/echo", .join = "load"};
struct target target;

static const struct {
    const char *name;
    void (*run)(void);
} MODES[] = {
    {"stream", stream}, {"echo", echo}, {"upload", upload}, {"fanout", fanout},
    {"idle", idle}, {"replay", replay}, {"first", first},
};

/* What getopt_long returns for them: their places in the list, from 1. */
enum { WS = 1, LINES_OVER_TCP, EXEC, TLS, SUBPROTOCOL, RESUME, TIMEOUT, CWD, METHOD, SAMPLES, JOIN, FIRST_NUMBER };

static const struct option LONG_OPTIONS[] = {
    {"ws", required_argument, NULL, WS},
    {"lines", required_argument, NULL, LINES_OVER_TCP},
    {"exec", no_argument, NULL, EXEC},
    {"tls", no_argument, NULL, TLS},
    {"subprotocol", required_argument, NULL, SUBPROTOCOL},
    {"resume", no_argument, NULL, RESUME},
    {"timeout", required_argument, NULL, TIMEOUT},
    {"cwd", required_argument, NULL, CWD},
    {"method", required_argument, NULL, METHOD},
    {"samples", required_argument, NULL, SAMPLES},
    {"join", required_argument, NULL, JOIN},
    /* In the order of NUMBERS. */
    {"count", required_argument, NULL, FIRST_NUMBER},
    {"batch", required_argument, NULL, FIRST_NUMBER + 1},
    {"size", required_argument, NULL, FIRST_NUMBER + 2},
    {"connections", required_argument, NULL, FIRST_NUMBER + 3},
    {"pause-us", required_argument, NULL, FIRST_NUMBER + 4},
    {"window", required_argument, NULL, FIRST_NUMBER + 5},
    {"viewers", required_argument, NULL, FIRST_NUMBER + 6},
    {"stalled", required_argument, NULL, FIRST_NUMBER + 7},
    {"initialize", required_argument, NULL, FIRST_NUMBER + 8},
    {"concurrency", required_argument, NULL, FIRST_NUMBER + 9},
    {"pace-us", required_argument, NULL, FIRST_NUMBER + 10},
    {"watch", required_argument, NULL, FIRST_NUMBER + 11},
    {"every-us", required_argument, NULL, FIRST_NUMBER + 12},
    {NULL, 0, NULL, 0},
};

static const struct {
    long *value, least, most;
} NUMBERS[] = {
    {&options.count, 1, 100000000},
    {&options.batch, 1, 1000000},
    {&options.size, 200, 64 * 1024 * 1024},
    {&options.connections, 1, MOST_CONNECTIONS},
    {&options.pause_us, 0, 10000000},
    {&options.window, 1, 1000000},
    {&options.viewers, 0, MOST_CONNECTIONS - 1},
    {&options.stalled, 0, MOST_CONNECTIONS - 1},
    {&options.initialize, 0, 1},
    {&options.concurrency, 1, MOST_CONNECTIONS},
    {&options.pace_us, 0, 10000000},
    {&options.watch, 0, INT_MAX},
    {&options.every_us, 0, 10000000},
};

static void read_address(const char *given, enum kind kind) {
    if (target.kind != NOWHERE)
        fail("one of --ws, --lines and --exec");
    target.kind = kind;
    const char *slash = strchr(given, '/');
    int size = slash == NULL ? (int)strlen(given) : (int)(slash - given);
    const char *colon = memrchr(given, ':', (size_t)size);
    if (colon == NULL || (slash != NULL && kind == LINES) || size >= (int)sizeof target.authority ||
        colon - given >= (int)sizeof target.host || size - (colon - given) > (int)sizeof target.port)
        fail("an address is HOST:PORT%s, not %s", kind == WEBSOCKET ? "/PATH" : "", given);
    target.path = slash == NULL ? "" : slash + 1;
    snprintf(target.authority, sizeof target.authority, "%.*s", size, given);
    snprintf(target.host, sizeof target.host, "%.*s", (int)(colon - given), given);
    snprintf(target.port, sizeof target.port, "%.*s", size - (int)(colon - given) - 1, colon + 1);
}

static void read_number(int option, const char *given) {
    int place = option - FIRST_NUMBER;
    char *end;
    long value = strtol(given, &end, 10);
    if (*given == '\0' || *end != '\0' || value < NUMBERS[place].least || value > NUMBERS[place].most)
        fail("--%s is a number from %ld to %ld, not %s", LONG_OPTIONS[option - 1].name, NUMBERS[place].least,
             NUMBERS[place].most, given);
    *NUMBERS[place].value = value;
}

static void read_option(int option, const char *given) {
    switch (option) {
    case WS:
        read_address(given, WEBSOCKET);
        break;
    case LINES_OVER_TCP:
        read_address(given, LINES);
        break;
    case EXEC:
        if (target.kind != NOWHERE)
            fail("one of --ws, --lines and --exec");
        target.kind = CHILD;
        break;
    case TLS:
        target.tls = true;
        break;
    case SUBPROTOCOL:
        target.subprotocol = given;
        break;
    case RESUME:
        target.resume = true;
        break;
    case TIMEOUT:
        options.timeout = atof(given);
        break;
    case CWD:
        options.cwd = given;
        break;
    case METHOD:
        options.method = given;
        break;
    case SAMPLES:
        options.samples = given;
        break;
    case JOIN:
        options.join = given;
        break;
    default:
        read_number(option, given);
    }
}

static void read_options(int count, char **arguments) {
    opterr = 0;
    /* "+": what follows the command of --exec is the command's. */
    for (int option; (option = getopt_long(count, arguments, "+", LONG_OPTIONS, NULL)) != -1;) {
        if (option == '?')
            fail("%s is not an option, or lacks its value", arguments[optind - 1]);
        read_option(option, optarg);
    }
    target.command = arguments + optind;
    target.token = getenv("LOAD_TOKEN");
    /* A gateway without a configured workspace serves the user's home. */
    if (options.cwd == NULL)
        options.cwd = getenv("HOME") != NULL ? getenv("HOME") : "/";
    /* Children must not inherit the token. */
    if (target.token != NULL && target.kind == CHILD)
        target.token = NULL;
    if (target.kind == NOWHERE)
        fail("where to? one of --ws, --lines and --exec");
    if ((target.kind == CHILD) != (optind < count))
        fail(target.kind == CHILD ? "--exec wants a command behind --" : "what is %s for?", arguments[optind]);
    if (target.kind == CHILD && (target.tls || target.resume))
        fail("a child has neither --tls nor --resume");
    if (options.timeout <= 0)
        fail("--timeout is a number of seconds");
}

int main(int count, char **arguments) {
    for (size_t i = 0; count > 1 && i < sizeof MODES / sizeof *MODES; i++) {
        if (strcmp(arguments[1], MODES[i].name) != 0)
            continue;
        read_options(count - 1, arguments + 1);
        MODES[i].run();
        close_sessions();
        leave_links();
        return 0;
    }
    fprintf(stderr, "%s\n", USAGE);
    return 1;
}
