/** An open session: head, transcript, the agent's questions, composer. */
import { useEffect, useMemo, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { PlanLines } from "../transcript/blocks.js";
import { useCommand } from "../page/command_keys.js";
import { Composer } from "./composer.js";
import { FilesOf } from "../files/file_link.js";
import { FindBar } from "./find_bar.js";
import { wantedOf } from "../../updates/find_text.js";
import { oneLine, sentence, titleOf } from "../../text/format.js";
import { Header } from "./header.js";
import { classes, labelIn, PaneOf } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { later } from "../parts/later.js";
import { markdownText } from "../../text/markdown.js";
import { usePane } from "./panes_view.js";
import { Permission } from "./permission.js";
import { Ports } from "./ports.js";
import { Queue } from "./queue.js";
import { MachineOfFiles } from "../transcript/reading.js";
import { makeRoute } from "../../route/route.js";
import { Transcript } from "../transcript/transcript.js";
import { endText } from "../../updates/turn_ends.js";
import { changeText } from "../../text/words.js";

const Changes = later(() => import("../transcript/changes_view.js"), "Changes");
const Files = later(() => import("../files/files_view.js"), "Files");

/** Characters of the agent's last words that a screen reader says at the end of a turn. */
const LAST_WORDS = 400;

/**
 * `page` has the signals of the page, `open` those of the session; `store` has the actions on it, `route` what of it is
 * shown, `pane` and `panes` its place among two. What changes with each update is read by the parts that show it.
 */
export function SessionView({ page, open, store, route, pane, panes, onBack, onShare, onExport, onRename, onDelete, children }) {
  const id = open.id.value ?? "";
  const info = page.info.value;
  const { root, properties } = usePane(pane);
  const used = useRef(/** @type {any} */ (null));
  used.current = pane.isUsedNow;
  const known = open.session.value;
  const session = known ?? { id, agentType: "", title: open.title.value, waiting: [], clients: [], mayControl: false };
  const title = titleOf(session);
  const context = useMemo(() => ({ isTwo: pane.isTwo, title, isUsed: () => used.current() }), [pane.isTwo, title]);
  const mayControl = session.mayControl !== false && info?.role !== "observer";
  const [finding, setFinding] = useState({ id: null, asked: 0 });
  const [words, setWords] = useState("");
  const [place, setPlace] = useState(/** @type {any} */ (null));
  const [drawn, setDrawn] = useState({ words, counts: new Map() });
  const phase = open.phase.value;
  const isReady = phase === "ready";
  const find = () => setFinding({ id, asked: finding.asked + 1 });
  const jump = async (seq) => {
    const first = await store.reach(seq);
    if (first !== null) setPlace({ id, seq, first });
  };
  const wanted = finding.id === id ? wantedOf(words) : "";
  const counts = drawn.words === wanted ? drawn.counts : new Map();
  const onDrawn = (key, count) => counts.get(key) !== count && setDrawn({ words: wanted, counts: new Map(counts).set(key, count) });
  const endFinding = () => {
    setFinding({ ...finding, id: null });
    root.current.querySelector(".scroller")?.focus({ preventScroll: true });
  };
  useEffect(() => void (isReady && route.at !== null && jump(route.at)), [id, isReady, route.at]);
  const showChanges = () => void (location.hash = makeRoute({ sessionId: id, changes: !route.changes }));
  const fork = () =>
    store.fork().then((sessionId) => (location.hash = makeRoute({ sessionId })), (error) => store.toast("error", error.message, id));
  const mayUseFiles = info?.mayUseFiles === true && known !== null;
  const filesOf = useMemo(() => (mayUseFiles ? { sessionId: id, machine: session.machine ?? null, cwd: session.cwd } : null), [mayUseFiles, id, session.cwd]);
  const showsFiles = mayUseFiles && (route.file ?? null) !== null;
  const mayFork = open.canFork.value && mayControl && !info?.guest;
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
  return html`<${PaneOf.Provider} value=${context}><${MachineOfFiles.Provider} value=${session.machine ?? null}><${FilesOf.Provider} value=${filesOf}>
  <section class=${classes("view", (route.changes || showsFiles) && "has-changes", pane.isUsed && "is-used")} aria-label=${labelIn(context, "Session")} ...${properties}>
    <${SessionKeys} find=${isReady ? find : null} changes=${isReady ? showChanges : null} fork=${mayFork ? fork : null} />
    <${Header} session=${session} isKnown=${known !== null} page=${page} usage=${open.usage} changes=${route.changes} files=${mayUseFiles ? showsFiles : null}
      onBack=${onBack} onShare=${onShare} actions=${actions} panes=${panes} />
    ${children}
    ${isReady && finding.id === id && html`<${FindBar} key=${`find ${id}`} asked=${finding.asked} words=${words} onWords=${setWords}
      open=${open} drawn=${counts} search=${store.searchHere} reach=${store.reach} show=${(found) => setPlace({ id, ...found })} onClose=${endFinding} />`}
    ${session.turn && html`<${Plans} open=${open} />`}
    ${route.changes && isReady && html`<${Changes} key=${`changes ${id}`} sessionId=${id} open=${open}
      onLoadOlder=${store.loadOlder} cwd=${session.cwd} send=${mayControl ? store.prompt : null} ask=${info?.mayUseFiles === false ? null : store.changesOnDisk} undo=${store.undoOnDisk} />`}
    ${showsFiles && isReady && html`<${Files} key=${`files ${id}`} session=${session} request=${store.request} path=${route.file} line=${route.line ?? null} mayWrite=${mayControl} />`}
    <${Middle} key=${`middle ${id}`} phase=${page.phase} open=${open} session=${session} store=${store} place=${place?.id === id ? place : null} words=${wanted} onDrawn=${onDrawn} />
    <${Announcer} open=${open} session=${session} isTwo=${pane.isTwo} />
    <div class="foot">
      <${Permission} open=${open} session=${session} mayControl=${mayControl} wanted=${route.requestId} respond=${store.respond} rulesFor=${store.rulesFor} />
      ${mayControl && session.status === "waiting" && !open.isAsked.value && session.waiting?.length === 0 &&
      html`<p class="turn-end is-waiting" role="status"><${Icon} name="alert" />The agent waits for you: it needs something that it does not ask for here.</p>`}
      <${Background} open=${open} />
      ${isReady && html`<${Ports} key=${`ports ${id}`} id=${id} turn=${session.turn} background=${open.background.value} store=${store} />`}
      <${NoTurn} open=${open} session=${session} />
      <${Queue} key=${`queue ${id}`} session=${session} open=${open} mayControl=${mayControl} change=${store.changeQueue} />
      ${(isReady || (phase === "loading" && open.hasUpdates.value)) && (mayControl
        ? html`<${Composer} key=${`composer ${id}`} session=${session} open=${open} isCovered=${route.changes || showsFiles} actions=${store}
            report=${(error) => store.toast("error", error.message)} />`
        : html`<p class="looks-on"><${Icon} name="eye" />You are looking on. Only those who control the session can write and decide.</p>`)}
    </div>
  </section></${FilesOf.Provider}></${MachineOfFiles.Provider}></${PaneOf.Provider}>`;
}

/** Commands of one session, in its pane. */
function SessionKeys({ find, changes, fork }) {
  useCommand("find", find);
  useCommand("changes", changes);
  useCommand("fork", fork);
  return null;
}

/** The plans of the session, while they are under way. */
function Plans({ open }) {
  return html`<${PlanLines} plans=${open.plan.value} />`;
}

/** What the agent does in the background. */
function Background({ open }) {
  const names = open.background.value;
  return names !== "" && html`<p class="turn-end" role="status">In the background: ${oneLine(names, 200)}</p>`;
}

/** The transcript, or why there is none. `phase` is that of the connection. */
function Middle({ open, session, store, place, words, onDrawn, phase: connection }) {
  const transcript = open.transcript.value;
  const phase = open.phase.value;
  if (phase === "unknown") {
    return html`<div class="message" role="alert"><p>There is no such session. It was deleted, or it is not yours.</p>
      <a class="secondary" href="#/">All sessions</a></div>`;
  }
  if (phase === "removed") return html`<p class="message">This session was deleted.</p>`;
  if (phase === "error") {
    return html`<div class="message" role="alert"><p dir="auto">${sentence(open.error.value)}</p>
      <button class="secondary" onClick=${() => store.open(open.id.value)}>Try again</button></div>`;
  }
  if (phase === "loading" && transcript.lastSeq === 0) return html`<p class="message" role="status">Loading…</p>`;
  return html`<${Transcript} blocks=${transcript.blocks} version=${transcript.version} firstSeq=${transcript.firstSeq} place=${place} words=${words} onDrawn=${onDrawn} lastSeq=${transcript.lastSeq}
    older=${open.older.value} history=${session.history} sent=${open.sent.value} onLoadOlder=${store.loadOlder} cwd=${session.cwd} turn=${Boolean(session.turn)}
    isConnected=${connection.value === "connected"} working=${(Boolean(session.turn) || session.status === "running") && !open.isAsked.value} />`;
}

/** Why no turn runs, unless the transcript says it: the agent has ended, or a prompt has failed before its turn. */
function NoTurn({ open, session }) {
  const error = open.turn.value?.error ?? null;
  if (session.turn) return null;
  if (session.status === "exited" && session.exitReason === "process_exit") {
    return html`<p class="turn-end" role="status">The agent has ended. The next prompt starts it again.</p>`;
  }
  if (error === null || error.message === open.end.value?.error) return null;
  return html`<p class="turn-end is-error" role="alert"><${Icon} name="alert" /><span dir="auto">${sentence(error.message)}</span></p>`;
}

/** Tells screen readers that the agent works or is done, and its last words. */
function Announcer({ open, session, isTwo }) {
  const before = useRef(/** @type {{session: any, end: any, change: string|null}} */ ({ session: null, end: null, change: null }));
  const [text, setText] = useState("");
  const end = open.end.value;
  useEffect(() => {
    const { current } = before;
    const change = changeText(current.session, session);
    // How the turn has ended may be told after the session has changed.
    const isTold = change === null && current.end === end;
    before.current = { session, end, change: change ?? current.change };
    if (isTold || before.current.change === null) return;
    const name = isTwo ? `${titleOf(session)}: ` : "";
    setText(name + (session.turn ? before.current.change : endWords(before.current.change, open.transcript.peek().blocks)));
  }, [session, end]);
  return html`<p class="hidden" aria-live="polite">${text}</p>`;
}

/** What is said at the end of a turn: how it has ended, or the change and the agent's last words. */
function endWords(change, blocks) {
  const last = blocks[blocks.length - 1];
  if (last?.kind === "end") return endText(last.end);
  if (last?.kind !== "agent") return change;
  return `${change} ` + markdownText(last.parts.map((part) => part.text ?? "").join("").slice(0, LAST_WORDS));
}
