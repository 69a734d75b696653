/**
 * The machines that the gateway leads to: each has a connection of its own, through the gateway, and tells its sessions and
 * agents by the names that they have there. Here they are `MACHINE/NAME`.
 */
import { OLDEST } from "../state/kept.js";
import { createRpc, globalTimers } from "./rpc.js";
import { personOf } from "../state/store.js";

/**
 * @typedef {import("../state/store.js").State} State
 * @typedef {import("../state/store.js").Rpc} Rpc
 * @typedef {{name: string, unreachableSince?: string, tooOld?: boolean, defaultAgent?: string}} Told - what the gateway tells of a machine.
 * @typedef {{name: string, rpc: ReturnType<typeof createRpc>, told: Told, line: number, person: string|null, isAway: boolean,
 *   timer: any, more: number}} Machine
 * @typedef {{follow: (machines: Told[]) => void, request: Rpc["request"], wake: () => void}} Fleet
 */

/** Time in ms without a connection after which a machine counts as away, and in which it must answer where all are asked. */
export const PATIENCE = 2000;
/** The same for a search. */
const SEARCH = 3000;
/** Sessions that a search finds at most. */
const MOST_FOUND = 50;
/** Longest pause in ms before a machine is tried again: many pages may wait for one, and the gateway tells when it is back. */
const LONGEST_PAUSE = 5000;
const QUIET = { quiet: true, resend: true };

/** Methods that the gateway itself carries out for sessions of machines: its page is what a guest opens. */
const AT_HOME = ["session/share"];

/**
 * Creates them.
 * @param {object} options
 * @param {Rpc & {state: import("./rpc.js").ConnectionState}} options.home - the gateway's own.
 * @param {(machine: string) => WebSocket} options.open - makes a WebSocket to a machine.
 * @param {(machine: string) => boolean} options.isBusy - see `createRpc`.
 * @param {() => boolean} options.isHidden
 * @param {Pick<ReturnType<typeof import("../state/store.js").createStore>, "state"|"merge"|"reached"|"onNotification"|"toast"|"subscribe">} options.store
 * @param {typeof createRpc} [options.create]
 * @param {{setTimeout: Function, clearTimeout: Function}} [options.timers]
 * @param {() => number} [options.clock] - ms since 1970.
 * @returns {Fleet}
 */
export function createFleet({ home, open, isBusy, isHidden, store, create = createRpc, timers = globalTimers, clock = Date.now }) {
  /** @type {Map<string, Machine>} */
  const machines = new Map();
  let wasThere = true;

  const moreThere = () => [...machines.values()].reduce((sum, { more }) => sum + more, 0);

  const join = (/** @type {Told} */ told) => {
    const { name } = told;
    const machine = /** @type {Machine} */ ({ name, told, line: 0, person: null, isAway: false, timer: null, more: 0 });
    machines.set(name, machine);
    machine.rpc = create({
      open: () => open(name),
      isBusy: () => isBusy(name),
      isHidden,
      longestPause: LONGEST_PAUSE,
      isOther: (info) => machine.person !== null && machine.person !== personOf(info),
      onState: () => changed(machine),
      onNotification: (method, params) => store.onNotification(method, named(name, params)),
    });
    machine.rpc.connect();
    watch(machine);
  };

  const leave = (/** @type {Machine} */ machine) => {
    machines.delete(machine.name);
    timers.clearTimeout(machine.timer);
    machine.rpc.close();
    store.merge((state) => ({ ...withAll(state, machine.name, {}), moreThere: moreThere() }));
  };

  const changed = (/** @type {Machine} */ machine) => {
    if (machine.rpc === undefined || machines.get(machine.name) !== machine) return;
    const { phase, line } = machine.rpc.state;
    if (phase !== "connected") {
      watch(machine);
      return;
    }
    timers.clearTimeout(machine.timer);
    machine.timer = null;
    if (line !== machine.line) {
      machine.line = line;
      store.reached(machine.name);
      void fetchAll(machine);
    } else if (machine.isAway) setAway(machine, null);
  };

  /** Waits until a machine without a connection counts as away. */
  const watch = (/** @type {Machine} */ machine) => {
    if (machine.timer !== null || machine.isAway) return;
    machine.timer = timers.setTimeout(() => {
      machine.timer = null;
      // Without the gateway, nothing is known of its machines.
      if (machine.rpc.state.phase === "connected" || home.state.phase !== "connected") return;
      const since = (machine.line === 0 && machine.told.unreachableSince) || new Date(machine.rpc.state.since).toISOString();
      setAway(machine, since);
    }, PATIENCE);
  };

  const setAway = (/** @type {Machine} */ machine, /** @type {string|null} */ since) => {
    machine.isAway = since !== null;
    store.merge((state) => away(state, machine.name, since));
  };

  /** Fetches what a machine has; a lost connection calls it again. */
  const fetchAll = async (/** @type {Machine} */ machine) => {
    const { rpc, name } = machine;
    try {
      const [info, agents, list] = await Promise.all([
        rpc.request("gateway/info", {}, QUIET),
        rpc.request("agents/list", {}, QUIET),
        rpc.request("session/list", { watch: true }, QUIET),
      ]);
      machine.person = personOf(info);
      machine.isAway = false;
      machine.more = list.more ?? 0;
      const told = { ...named(name, { ...agents, ...list }), defaultAgent: machine.told.defaultAgent };
      store.merge((state) => ({ ...withAll(state, name, told), moreThere: moreThere() }));
    } catch (error) {
      const { code, message } = /** @type {any} */ (error);
      if (code !== "lost" && code !== "ended") store.toast("error", `${name}: ${message}`);
    }
  };

  const fetchAgents = async (/** @type {Machine} */ { rpc, name, told }) => {
    const answer = await rpc.request("agents/list", {}, { quiet: true, timeout: PATIENCE }).catch(() => null);
    if (answer !== null) store.merge((state) => withAgents(state, name, named(name, answer).agents, told.defaultAgent));
  };

  const isThere = (/** @type {Machine} */ { rpc }) => rpc.state.phase === "connected";

  /**
   * Asks the gateway and all machines that are there.
   * @returns {Promise<{own: any, found: any[], missing: string[]}>} fails as the gateway does.
   */
  const askAll = async (/** @type {string} */ method, /** @type {any} */ params, /** @type {any} */ options, /** @type {number} */ timeout) => {
    /** @type {any[]} */
    const found = [];
    /** @type {string[]} */
    const missing = [];
    const ask = async (/** @type {Machine} */ machine) => {
      if (!isThere(machine)) throw new Error("away");
      return named(machine.name, await machine.rpc.request(method, params, { ...options, timeout }));
    };
    const asked = [...machines.values()].map((machine) => ask(machine).then((answer) => void found.push(answer), () => void missing.push(machine.name)));
    const own = await home.request(method, params, options);
    await Promise.all(asked);
    return { own, found, missing };
  };

  /** Asks all machines; `others` has the names of the others with their answers, null where there is none. */
  const withOthers = async (/** @type {string} */ method, /** @type {any} */ params, /** @type {any} */ options) => {
    const ask = async (/** @type {Machine} */ machine) => {
      const there = { ...options, timeout: PATIENCE };
      if (!isThere(machine)) return [machine.name, null];
      return [machine.name, await machine.rpc.request(method, params, there).then((answer) => named(machine.name, answer), () => null)];
    };
    const others = [...machines.values()].map(ask);
    return { ...(await home.request(method, params, options)), others: await Promise.all(others) };
  };

  /** What all machines answer together, by method. @type {Record<string, (params: any, options: any) => Promise<any>>} */
  const together = {
    "session/search": async (params, options) => {
      const { own, found, missing } = await askAll("session/search", params, options, SEARCH);
      const all = [own, ...found];
      return {
        ...own,
        found: all.flatMap((answer) => answer.found).slice(0, MOST_FOUND),
        complete: all.every(({ complete }) => complete),
        missing: missing.sort(),
      };
    },
    "gateway/machine": (params, options) => withOthers("gateway/machine", params, options),
    "gateway/usage": (params, options) => withOthers("gateway/usage", params, options),
    "session/list": async (params, options) => {
      const { own, found } = await askAll("session/list", params, options, PATIENCE);
      return { ...own, sessions: [own, ...found].flatMap(({ sessions }) => sessions) };
    },
    "session/last": async ({ sessionIds, ...params }, options) => {
      const answers = [...byMachine(sessionIds)].map(async ([name, ids]) => {
        const machine = machines.get(name);
        if (machine === undefined) return home.request("session/last", { ...params, sessionIds: ids }, options);
        if (!isThere(machine)) return {};
        const answer = machine.rpc.request("session/last", { ...params, sessionIds: ids }, { ...options, timeout: PATIENCE });
        return named(name, await answer.catch(() => ({})));
      });
      const lines = (await Promise.all(answers)).map((answer) => answer.lines ?? {});
      return { lines: Object.assign({}, ...lines) };
    },
  };

  /** Sorts names of sessions by machine, as they are there; those of the gateway by an empty name. */
  const byMachine = (/** @type {string[]} */ ids) => {
    /** @type {Map<string, string[]>} */
    const sorted = new Map();
    for (const id of ids) {
      const [name, rest] = placeOf(id);
      const machine = machines.has(name) ? name : "";
      sorted.set(machine, [...(sorted.get(machine) ?? []), machine === "" ? id : rest]);
    }
    return sorted;
  };

  store.subscribe(() => {
    const { phase } = home.state;
    const isBack = phase === "connected" && !wasThere;
    wasThere = phase === "connected";
    for (const machine of machines.values()) {
      if (phase === "refused") machine.rpc.close();
      // What was away with the gateway may still be once that is back.
      else if (isBack && !isThere(machine)) watch(machine);
    }
  });

  return {
    follow: (told) => {
      const names = told.map(({ name }) => name);
      for (const machine of [...machines.values()]) if (!names.includes(machine.name)) leave(machine);
      for (const one of told) {
        const known = machines.get(one.name);
        if (known === undefined) join(one);
        else {
          if (known.told.unreachableSince && !one.unreachableSince) known.rpc.wake();
          known.told = one;
        }
      }
      store.merge((state) => ({ ...forgetOld(state, clock()), info: state.info && { ...state.info, machines: told } }));
    },

    request: (method, params = {}, options = {}) => {
      const { sessionId, agentType, watch: watches } = /** @type {any} */ (params);
      const [name, rest] = placeOf(String(sessionId ?? agentType ?? ""));
      const machine = AT_HOME.includes(method) ? undefined : machines.get(name);
      if (machine !== undefined) {
        const there = { ...params, ...(sessionId === undefined ? { agentType: rest } : { sessionId: rest }) };
        return machine.rpc.request(method, there, options).then((answer) => named(name, answer));
      }
      if (method === "agents/list") for (const one of machines.values()) if (isThere(one)) void fetchAgents(one);
      const all = sessionId === undefined && !watches ? together[method] : undefined;
      return all === undefined ? home.request(method, params, options) : all(params, options);
    },

    wake: () => machines.forEach(({ rpc }) => rpc.wake()),
  };
}

/** Returns the machine of a name, and what it is called there. @param {string} name @returns {[string, string]} */
export function placeOf(name) {
  const at = name.indexOf("/");
  return at < 0 ? ["", name] : [name.slice(0, at), name.slice(at + 1)];
}

/**
 * Returns the result of a request, or the params of a notification, with the names that sessions and agents have here.
 * @param {string} machine
 * @param {any} told
 */
export function named(machine, told) {
  const here = (/** @type {any} */ name) => (typeof name === "string" ? `${machine}/${name}` : name);
  const session = (/** @type {any} */ one) => ({ ...one, id: here(one.id), agentType: here(one.agentType), machine });
  const agent = (/** @type {any} */ one) => ({ ...one, name: here(one.name), title: here(one.title ?? one.name), machine });
  const next = { ...told };
  for (const name of ["sessionId", "movedTo"]) if (name in next) next[name] = here(next[name]);
  if (next.session) next.session = session(next.session);
  if (Array.isArray(next.sessions)) next.sessions = next.sessions.map(session);
  if (Array.isArray(next.agents)) next.agents = next.agents.map(agent);
  if (Array.isArray(next.found)) next.found = next.found.map((/** @type {any} */ one) => named(machine, one));
  if (next.by === "session" || next.by === "agent") next.rows = next.rows.map((/** @type {any} */ row) => ({ ...row, key: here(row.key) }));
  if (next.lines) next.lines = Object.fromEntries(Object.entries(next.lines).map(([id, line]) => [here(id), line]));
  return next;
}

/** @param {State} state @param {string} name @param {any[]} agents @param {string|undefined} defaultAgent - of the gateway. */
function withAgents(state, name, agents, defaultAgent) {
  const there = agents.map((one) => ({ ...one, default: one.name === defaultAgent }));
  return { agents: [...state.agents.filter(({ machine }) => machine !== name), ...there] };
}

/** What the page shows once a machine has told its agents and sessions. @param {State} state @param {string} name @param {any} told */
function withAll(state, name, { agents = [], sessions = [], defaultAgent }) {
  const others = [...state.sessions.values()].filter(({ machine }) => machine !== name);
  return { ...withAgents(state, name, agents, defaultAgent), sessions: asMap([...others, ...sessions]) };
}

/** What it shows of a machine that is away since then, or is there: `since` is null. @param {State} state @param {string} name @param {string|null} since */
function away(state, name, since) {
  const mark = (/** @type {any} */ one) => {
    if (one.machine !== name) return one;
    const { unreachableSince, ...rest } = one;
    return since === null ? rest : { ...rest, unreachableSince: unreachableSince ?? since };
  };
  return { agents: state.agents.map(mark), sessions: asMap([...state.sessions.values()].map(mark)) };
}

/** What it shows without sessions of machines that are away for so long that nothing is kept of them. @param {State} state @param {number} now */
function forgetOld(state, now) {
  const isOld = (/** @type {any} */ { machine, unreachableSince }) => Boolean(machine) && now - Date.parse(unreachableSince) > OLDEST;
  return { sessions: asMap([...state.sessions.values()].filter((one) => !isOld(one))) };
}

/** @param {any[]} sessions */
function asMap(sessions) {
  return new Map(sessions.map((one) => [one.id, one]));
}
