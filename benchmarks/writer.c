/* An agent that writes as fast as anybody can read: what is measured must not wait for it. See resume.py.

   The text of a prompt is two numbers: how many updates of 200 bytes, and how many of them at once. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 200, MOST = 1000 };

static const char HEAD[] = "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"%s\",\"update\":"
                           "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"";
static const char TAIL[] = "\"}}}}\n";

static void put(const char *text, size_t size) {
    while (size > 0) {
        ssize_t written = write(STDOUT_FILENO, text, size);
        if (written < 0)
            exit(1);
        text += written;
        size -= (size_t)written;
    }
}

static void update(const char *session, long count, long at_once) {
    static char lines[MOST * SIZE];
    char line[SIZE + 1];
    int head = snprintf(line, sizeof line, HEAD, session);
    memset(line + head, 'x', (size_t)(SIZE - head));
    memcpy(line + SIZE - strlen(TAIL), TAIL, strlen(TAIL));
    for (long i = 0; i < at_once; i++)
        memcpy(lines + i * SIZE, line, SIZE);
    for (; count > 0; count -= at_once)
        put(lines, (size_t)(count < at_once ? count : at_once) * SIZE);
}

int main(void) {
    char *line = NULL, session[64] = "", reply[256];
    size_t room = 0;
    int sessions = 0;
    while (getline(&line, &room, stdin) > 0) {
        const char *id = strstr(line, "\"id\":"), *text = strstr(line, "\"text\":\"");
        long count, at_once;
        if (id == NULL)
            continue;
        if (strstr(line, "\"session/new\"")) {
            snprintf(session, sizeof session, "s-%d-%d", getpid(), ++sessions);
            snprintf(reply, sizeof reply, "\"sessionId\":\"%s\"", session);
        } else if (text != NULL && sscanf(text, "\"text\":\"%ld %ld", &count, &at_once) == 2 && at_once > 0 && at_once <= MOST) {
            update(session, count, at_once);
            snprintf(reply, sizeof reply, "\"stopReason\":\"end_turn\"");
        } else {
            snprintf(reply, sizeof reply, "\"protocolVersion\":1");
        }
        char answer[512];
        int size = snprintf(answer, sizeof answer, "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"result\":{%s}}\n", atol(id + 5), reply);
        put(answer, (size_t)size);
    }
    return 0;
}
