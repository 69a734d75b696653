/**
 * The state of the page as signals: a view that reads one is drawn again when that one changes, and no other view is.
 *
 * They follow the store once per frame, all at the same moment.
 */
import { batch, computed, signal } from "../../vendor/signals_core.js";
import { backgroundOf, emptyTranscript } from "../updates/fold.js";

/**
 * @typedef {import("./store.js").State} State
 * @typedef {import("./open_session.js").Current} Current
 * @typedef {ReturnType<typeof createSignals>} Page
 * @typedef {ReturnType<typeof createOpenSignals>} Open - of one of the sessions side by side.
 */

/**
 * Makes a signal of each member of an object.
 * @template {object} T
 * @param {T} values
 */
function signalsOf(values) {
  const signals = /** @type {{[K in keyof T]: import("../../vendor/signals_core.js").Signal<T[K]>}} */ ({});
  for (const name of /** @type {(keyof T)[]} */ (Object.keys(values))) signals[name] = signal(values[name]);
  return signals;
}

/**
 * Sets signals to the members of an object.
 * @template {object} T
 * @template {keyof T} N
 * @param {{[K in N]: import("../../vendor/signals_core.js").Signal<T[K]>}} signals
 * @param {T} values
 */
function follow(signals, values) {
  for (const name of /** @type {N[]} */ (Object.keys(signals))) signals[name].value = values[name];
}

/** Where no session is open. @returns {Omit<Current, "id"> & {id: string|null}} */
const nothing = () => ({
  id: null,
  phase: "loading",
  error: null,
  session: null,
  transcript: emptyTranscript(),
  epoch: null,
  older: "none",
  pending: [],
  sending: [],
  sent: 0,
  queue: [],
  modes: null,
  models: null,
  configOptions: null,
  promptCapabilities: null,
  canFork: false,
  turn: null,
  draft: "",
});

/** The signals of one of the sessions side by side, also of what its transcript says beside its blocks. */
function createOpenSignals() {
  const open = signalsOf(nothing());
  const { transcript } = open;
  return {
    ...open,
    title: computed(() => transcript.value.title),
    usage: computed(() => transcript.value.usage),
    plan: computed(() => transcript.value.plan),
    end: computed(() => transcript.value.end),
    commands: computed(() => transcript.value.commands),
    toldModeId: computed(() => transcript.value.modeId),
    toldOptions: computed(() => transcript.value.configOptions),
    background: computed(() => backgroundOf(transcript.value).join(", ")),
    hasUpdates: computed(() => transcript.value.lastSeq > 0),
    isAsked: computed(() => open.pending.value.length > 0),
    /** @param {Current|null} current */
    follow: (current) => {
      if (current !== null || open.id.peek() !== null) follow(open, current ?? nothing());
    },
  };
}

/**
 * Creates the signals of the store.
 * @param {State} state
 */
export function createSignals({ current, beside, ...state }) {
  const page = signalsOf(state);
  const panes = [createOpenSignals(), createOpenSignals()];
  return {
    ...page,
    /** The sessions in the order of the list. */
    inOrder: computed(() => page.order.value.map((id) => /** @type {import("./sessions.js").Session} */ (page.sessions.value.get(id)))),
    /** The phase of the connection. */
    phase: computed(() => page.connection.value.phase),
    panes,
    /** @param {State} now */
    follow: (now) =>
      batch(() => {
        follow(page, now);
        panes[0].follow(now.current);
        panes[1].follow(now.beside);
      }),
  };
}
