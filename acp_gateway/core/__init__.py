"""Decisions for one agent and its clients: events go in, output comes out. No I/O, no clock, no log.

The modules, from the bottom up:

- `turns/times`, `turns/journal` and `sessions/archive`: the history of a session, and the interface of its storage.
- `states`: states of clients, sessions and agents, with the transitions between them.
- `sessions/session`, `requests` and `sessions/registry`: one session with its clients, their requests, and the owners
  of all sessions.
- `waiting`: requests that wait for an event, and the order of each client's requests.
- `output`: messages and effects, collected for the driver.
- `sessions/far_places`: the place of a session in the history of another gateway, which has the agent.
- `agent_requests`, `terminals`, `turns/echoes`, `turns/cut_turns`: parts of the state of an agent process.
- `capabilities`, `mcp_servers`, `access_rules`, `turns/updates`: pure functions on messages.
- `agent_state`: the state of an agent process, and how requests are forwarded and answered.
- `routing`, `initialization`, the other modules of `sessions/` and `turns/`: decisions.
- `multiplexer`: the entry point, which dispatches each event to one of them.

The driver feeds events, one verb for each: `attach`, `receive_from_client`, `client_away`, `client_back`,
`client_gone`, `close_client`, `receive_from_agent`, `agent_lost`, `agent_stopped`, `end_turns`, `set_time` and
`shut_down`. `journal_loaded` and `directories_checked` bring the results of requested work. The verbs never raise or
wait. Afterwards the driver takes the output (`take_output`): messages to send, and effects to carry out.

Ids. Each request of a client is forwarded under a whole number that is never used twice; the response gets the client's
own spelling back. Each request of the agent is forwarded to each recipient under an id of that recipient
(`agent_requests`). An id inside of a message (`$/cancel_request`, elicitations, terminals) is translated in place. The
rest of a message keeps its bytes.

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
