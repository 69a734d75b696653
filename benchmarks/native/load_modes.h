/* Modes of measurement: each prints one JSON object and leaves its links open. */

#ifndef LOAD_MODES_H
#define LOAD_MODES_H

void stream(void);
void echo(void);
void upload(void);
void fanout(void);
void idle(void);
void replay(void);
void first(void);

#endif
