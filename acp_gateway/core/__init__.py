"""Decisions for one agent and its clients: events go in, output comes out. No I/O, no clock, no log.

The modules, from the bottom up:

- `states`: states of clients, sessions and agents, with the transitions between them.
- `turns/times`, `turns/journal` and `sessions/archive`: the history of a session, and the interface of its storage.
- `sessions/places`: places in the history of a session, as its clients count.
- `requests`, `turns/echoes`: requests as the agent sees them, their ends, and prompts that agents repeat.
- `turns/retelling`, `turns/replays`: histories that agents tell again.
- `capabilities`, `mcp_servers`, `sessions/own_meta`: pure functions on messages.
- `sessions/session`: one session with its clients and their requests, which refer to each other.
- `sessions/registry`: the owners of all sessions.
- `waiting`: requests that wait for an event, and the order of each client's requests.
- `sessions/agent_ids`, `output`: messages and effects, collected for the driver, and ids of sessions at the agent.
- `agent_requests`, `terminals`, `process`, `turns/cut_turns`, `turns/events`: parts of the state of an agent process.
- `agent_state`: the state of an agent process, and how requests are answered.
- `access_rules`, `sessions/preconditions`, `turns/updates`: what messages may ask for.
  A request that can't go on has an `Objection`: its refusal, or the event after which it is judged again.
- `routing`, `sessions/joining`, `sessions/agent_opening`: the agent's own messages, clients that join a session, and
  what the agent is asked to open.
- `initialization`, the other modules of `sessions/` and `turns/`: decisions.
- `multiplexer`: the entry point, which dispatches each event to one of them.

No module imports one that imports it, not even for types.

The driver feeds events, one verb for each: `attach`, `receive_from_client`, `client_away`, `client_back`,
`client_gone`, `close_client`, `receive_from_agent`, `agent_lost`, `agent_stopped`, `end_turns`, `set_time` and
`shut_down`. `journal_loaded` and `directories_checked` bring the results of requested work. The verbs never raise or
wait. Afterwards the driver takes the output (`take_output`): messages to send, and effects to carry out.

Ids. Each request of a client is forwarded under a whole number that is never used twice; the response gets the client's
own spelling back. Each request of the agent is forwarded to each recipient under an id of that recipient
(`agent_requests`). An id inside of a message (`$/cancel_request`, elicitations, terminals, sessions that were made
again) is translated in place. The rest of a message keeps its bytes.

Sessions. A message that names a session reaches the agent only from an attached client; other clients are answered as
if the session did not exist. A live session is never loaded again: the journal answers, in one step with attaching, so
that nothing is missing and nothing comes twice. A session has one turn at a time, and its updates fan out to all
attached clients.

Agent. It is initialized once, by the first client. When it ends, each open request is answered with an error. An agent
for several clients is started again by the next request, and re-opens the sessions with attached clients before it gets
any other request.

Answered here and never forwarded: text that is not a message, arrays, messages with a repeated member where the gateway
looks, requests before `initialize`, a second `initialize`, an id still in use, sessions in directories that are missing
or not permitted, methods that observers and guests may not use, masked `fs/*` and `terminal/*` requests of the agent,
and the gateway's reserved methods.
"""
