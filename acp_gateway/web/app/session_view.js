/** An open session: head, transcript, the agent's questions, composer. */
import { html, useEffect, useMemo, useRef, useState } from "../vendor/standalone.module.js";
import { PlanLines } from "./blocks.js";
import { useCommand } from "./command_keys.js";
import { Composer } from "./composer.js";
import { FindBar } from "./find_bar.js";
import { wantedOf } from "./find_text.js";
import { backgroundOf } from "./fold_blocks.js";
import { oneLine, sentence, titleOf } from "./format.js";
import { Header } from "./header.js";
import { classes, labelIn, PaneOf } from "./hooks.js";
import { Icon } from "./icons.js";
import { later } from "./later.js";
import { markdownText } from "./markdown.js";
import { usePane } from "./panes_view.js";
import { Permission } from "./permission.js";
import { Queue } from "./queue.js";
import { MachineOfFiles } from "./reading.js";
import { makeRoute } from "./route.js";
import { Transcript } from "./transcript.js";
import { endText } from "./turn_ends.js";
import { changeText } from "./words.js";

const Changes = later(() => import("./changes_view.js"), "Changes");

/** Characters of the agent's last words that a screen reader says at the end of a turn. */
const LAST_WORDS = 400;

/** `current` is the session, `store` has the actions on it, `route` what of it is shown, `pane` and `panes` its place among two. */
export function SessionView({ state, current, store, route, pane, panes, onBack, onShare, onExport, onRename, onDelete, children }) {
  const { connection, info, agents } = state;
  const { root, properties } = usePane(pane);
  const used = useRef(null);
  used.current = pane.isUsedNow;
  const session = current.session ?? { id: current.id, agentType: "", title: current.transcript.title, waiting: [], clients: [], mayControl: false };
  const title = titleOf(session);
  const context = useMemo(() => ({ isTwo: pane.isTwo, title, isUsed: () => used.current() }), [pane.isTwo, title]);
  const background = backgroundOf(current.transcript);
  const mayControl = session.mayControl !== false && info?.role !== "observer";
  const [finding, setFinding] = useState({ id: null, asked: 0 });
  const [words, setWords] = useState("");
  const [place, setPlace] = useState(null);
  const [drawn, setDrawn] = useState({ words, counts: new Map() });
  const isReady = current.phase === "ready";
  const find = () => setFinding({ id: current.id, asked: finding.asked + 1 });
  const jump = async (seq) => {
    const first = await store.reach(seq);
    if (first !== null) setPlace({ id: current.id, seq, first });
  };
  const wanted = finding.id === current.id ? wantedOf(words) : "";
  const counts = drawn.words === wanted ? drawn.counts : new Map();
  const onDrawn = (key, count) => counts.get(key) !== count && setDrawn({ words: wanted, counts: new Map(counts).set(key, count) });
  const endFinding = () => {
    setFinding({ ...finding, id: null });
    root.current.querySelector(".scroller")?.focus({ preventScroll: true });
  };
  useEffect(() => void (isReady && route.at !== null && jump(route.at)), [current.id, isReady, route.at]);
  const showChanges = () => void (location.hash = makeRoute({ sessionId: current.id, changes: !route.changes }));
  const fork = () =>
    store.fork().then((sessionId) => (location.hash = makeRoute({ sessionId })), (error) => store.toast("error", error.message, current.id));
  const mayFork = current.canFork && mayControl && !info?.guest;
  const actions = {
    find,
    fork: mayFork ? fork : null,
    archive: () => store.archive(session.id, !session.archived).catch((error) => store.toast("error", error.message)),
    rename: onRename,
    remove: onDelete,
    exportSession: onExport,
    follow: store.follow,
    tell: (text) => store.toast("info", text),
  };
  return html`<${PaneOf.Provider} value=${context}><${MachineOfFiles.Provider} value=${session.machine ?? null}>
  <section class=${classes("view", route.changes && "has-changes", pane.isUsed && "is-used")} aria-label=${labelIn(context, "Session")} ...${properties}>
    <${SessionKeys} find=${isReady ? find : null} changes=${isReady ? showChanges : null} fork=${mayFork ? fork : null} />
    <${Header} session=${session} isKnown=${current.session !== null} connection=${connection} transcript=${current.transcript} agents=${agents} info=${info} changes=${route.changes}
      onBack=${onBack} onShare=${onShare} actions=${actions} panes=${panes} />
    ${children}
    ${isReady && finding.id === current.id && html`<${FindBar} key=${`find ${current.id}`} asked=${finding.asked} words=${words} onWords=${setWords}
      transcript=${current.transcript} older=${current.older} drawn=${counts} search=${store.searchHere} reach=${store.reach} show=${(found) => setPlace({ id: current.id, ...found })} onClose=${endFinding} />`}
    ${session.turn && html`<${PlanLines} plans=${current.transcript.plan} />`}
    ${route.changes && isReady && html`<${Changes} key=${`changes ${current.id}`} sessionId=${current.id} transcript=${current.transcript} older=${current.older}
      onLoadOlder=${store.loadOlder} cwd=${session.cwd} send=${mayControl ? store.prompt : null} />`}
    <${Middle} key=${`middle ${current.id}`} isConnected=${connection.phase === "connected"} current=${current} session=${session} store=${store} place=${place?.id === current.id ? place : null} words=${wanted} onDrawn=${onDrawn} />
    <${Announcer} current=${current} session=${session} isTwo=${pane.isTwo} />
    <div class="foot">
      <${Permission} pending=${current.pending} transcript=${current.transcript} session=${{ ...session, mayControl }}
        wanted=${route.requestId} respond=${store.respond} />
      ${mayControl && session.status === "waiting" && current.pending.length === 0 && session.waiting?.length === 0 &&
      html`<p class="turn-end is-waiting" role="status"><${Icon} name="alert" />The agent waits for you: it needs something that it does not ask for here.</p>`}
      ${background.length > 0 && html`<p class="turn-end" role="status">In the background: ${oneLine(background.join(", "), 200)}</p>`}
      <${NoTurn} error=${current.turn?.error ?? null} end=${current.transcript.end} session=${session} />
      <${Queue} key=${`queue ${current.id}`} session=${session} queue=${current.queue} mayControl=${mayControl} change=${store.changeQueue} />
      ${(current.phase === "ready" || (current.phase === "loading" && current.transcript.lastSeq > 0)) && (mayControl
        ? html`<${Composer} key=${`composer ${current.id}`} session=${session} current=${current} isCovered=${route.changes} actions=${store}
            report=${(error) => store.toast("error", error.message)} />`
        : html`<p class="looks-on"><${Icon} name="eye" />You are looking on. Only those who control the session can write and decide.</p>`)}
    </div>
  </section></${MachineOfFiles.Provider}></${PaneOf.Provider}>`;
}

/** Commands of one session, in its pane. */
function SessionKeys({ find, changes, fork }) {
  useCommand("find", find);
  useCommand("changes", changes);
  useCommand("fork", fork);
  return null;
}

/** The transcript, or why there is none. */
function Middle({ current, session, store, place, words, onDrawn, isConnected }) {
  const { transcript, phase } = current;
  if (phase === "unknown") {
    return html`<div class="message" role="alert"><p>There is no such session. It was deleted, or it is not yours.</p>
      <a class="secondary" href="#/">All sessions</a></div>`;
  }
  if (phase === "removed") return html`<p class="message">This session was deleted.</p>`;
  if (phase === "error") {
    return html`<div class="message" role="alert"><p dir="auto">${sentence(current.error)}</p>
      <button class="secondary" onClick=${() => store.open(current.id)}>Try again</button></div>`;
  }
  if (phase === "loading" && transcript.lastSeq === 0) return html`<p class="message" role="status">Loading…</p>`;
  return html`<${Transcript} blocks=${transcript.blocks} version=${transcript.version} firstSeq=${transcript.firstSeq} place=${place} words=${words} onDrawn=${onDrawn} lastSeq=${transcript.lastSeq}
    older=${current.older} history=${session.history} sent=${current.sent} onLoadOlder=${store.loadOlder} cwd=${session.cwd} turn=${Boolean(session.turn)}
    isConnected=${isConnected} working=${(Boolean(session.turn) || session.status === "running") && current.pending.length === 0} />`;
}

/** Why no turn runs, unless the transcript says it: the agent has ended, or a prompt has failed before its turn. */
function NoTurn({ error, end, session }) {
  if (session.turn) return null;
  if (session.status === "exited" && session.exitReason === "process_exit") {
    return html`<p class="turn-end" role="status">The agent has ended. The next prompt starts it again.</p>`;
  }
  if (error === null || error.message === end?.error) return null;
  return html`<p class="turn-end is-error" role="alert"><${Icon} name="alert" /><span dir="auto">${sentence(error.message)}</span></p>`;
}

/** Tells screen readers that the agent works or is done, and its last words. */
function Announcer({ current, session, isTwo }) {
  const before = useRef(null);
  const [text, setText] = useState("");
  useEffect(() => {
    const change = changeText(before.current, session);
    before.current = session;
    if (change === null) return;
    const name = isTwo ? `${titleOf(session)}: ` : "";
    setText(name + (session.turn ? change : endWords(change, current.transcript.blocks)));
  }, [session]);
  return html`<p class="hidden" aria-live="polite">${text}</p>`;
}

/** What is said at the end of a turn: how it has ended, or the change and the agent's last words. */
function endWords(change, blocks) {
  const last = blocks[blocks.length - 1];
  if (last?.kind === "end") return endText(last.end);
  if (last?.kind !== "agent") return change;
  return `${change} ` + markdownText(last.parts.map((part) => part.text ?? "").join("").slice(0, LAST_WORDS));
}
