/** The page: connects, follows the address, and shows the list beside the open sessions. */
import { render } from "../vendor/preact.js";
import "../vendor/signals.js";
import { computed, effect, signal } from "../vendor/signals_core.js";
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./views/parts/html.js";
import { createAddress } from "./route/address.js";
import { createAttention, DENIED } from "./views/page/attention.js";
import { followKeys } from "./views/page/command_keys.js";
import { Dialog } from "./views/parts/dialog.js";
import { treeOf } from "./text/file_paths.js";
import { sentence, titleOf, visible } from "./text/format.js";
import { ConnectionLine } from "./views/session/header.js";
import { classes, useMedia } from "./views/parts/hooks.js";
import { createKeeper } from "./state/keeper.js";
import { keep, read, storageOf } from "./state/kept.js";
import { KeySheet } from "./views/page/key_sheet.js";
import { later, parts } from "./views/parts/later.js";
import { keepChoice, keptChoice, machinesOf, onMachine } from "./state/machines.js";
import { NoAnswer, within } from "./net/http.js";
import { Icon } from "./views/parts/icons.js";
import { frameOf } from "./views/parts/frames.js";
import { NewSession } from "./views/list/new_session.js";
import { createVersions, NewVersion } from "./views/page/new_version.js";
import { PageCommands } from "./views/page/page_commands.js";
import { Palette } from "./views/page/palette.js";
import { assigned, besideOf, BOARD, closedOf, partsOf, ROOM } from "./route/panes.js";
import { useOpenBeside } from "./views/session/panes_view.js";
import { createPush } from "./net/push.js";
import { makeRoute, parseRoute } from "./route/route.js";
import { reader } from "./code/code_reader.js";
import { createReach } from "./net/reach.js";
import { createRpc, globalTimers } from "./net/rpc.js";
import { SessionList } from "./views/list/session_list.js";
import { SessionView } from "./views/session/session_view.js";
import { watchSigns } from "./net/signs.js";
import { finishSignOut, isSignedIn, SignIn, signIn, signOut } from "./views/page/sign_in.js";
import { createStore } from "./state/store.js";
import { createTheme } from "./views/page/theme.js";
import { followViewport } from "./views/page/viewport.js";
import { removedText } from "./state/unsent.js";
import { toastText } from "./text/words.js";

const Board = later(() => import("./views/list/board.js"), "Board");
const Export = later(() => import("./views/session/export.js"), "Export");
const Costs = later(() => import("./views/list/costs_view.js"), "Costs");
const MachineCards = later(() => import("./views/list/machine_cards.js"), "MachineCards");
const Notifications = later(() => import("./views/page/notifications.js"), "Notifications");
const Rename = later(() => import("./views/session/rename.js"), "Rename");
const Share = later(() => import("./views/session/share.js"), "Share");

/** Width from which the list and a session stand side by side. */
const WIDE = "(min-width: 720px)";

/** Time in ms for which a message of the page stays, and for which one about a failure does. */
const TOAST_TIME = { info: 5000, error: 15000 };

/** Names this page: its connections are one client for the gateway. */
const PAGE = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const address = createAddress(window);
const attention = createAttention(window);
const open = (path = "") => new WebSocket(new URL(`./${path}ws?page=${PAGE}`, document.baseURI.replace(/^http/, "ws")));
const isBusy = (machine = "") => [store.state.current, store.state.beside].some((one) => one?.session?.turn && (one.session.machine ?? "") === machine);
const isHidden = () => document.hidden;
const home = createRpc({
  open: () => open(),
  check: async () => ((await isSignedIn()) ? "ok" : "refused"),
  onState: (connection) => store.onState(connection),
  onNotification: (/** @type {string} */ method, /** @type {any} */ params) => (method === "machines/changed" ? rpc.follow(params.machines) : store.onNotification(method, params)),
  isOther: (info) => store.isOther(info),
  isBusy: () => isBusy(),
  isHidden,
});
const rpc = createReach(home, async () => {
  const { createFleet } = await import("./net/fleet.js");
  return createFleet({ home, store, isBusy, isHidden, open: (machine) => open(`nodes/${machine}/`) });
});
const keeper = createKeeper({ caches: window.caches, base: new URL("./read/", document.baseURI).href });
const kept = storageOf(() => window.localStorage);
const turnTheme = createTheme(window, kept);
const tab = storageOf(() => window.sessionStorage);
const store = createStore({ rpc, frame: frameOf(window), storage: tab, lasting: kept, keeper, startAfresh });
const push = createPush({ window, registered: attention.registered, request: (method, params) => rpc.request(method, params), kept });
const versions = createVersions({ window, timers: globalTimers });
// Files of an old version are not there any more.
reader.onFailure = versions.check;
parts.onFailure = () => {
  store.toast("error", "This part of the page did not come. If that stays so, reload the page.");
  versions.check();
};
/** What is done with each open session, and what its view needs beside that. */
const actionsOf = store.panes.map((actions) => ({ ...actions, toast: store.toast, archive: store.archive, follow: attention.permission === "unavailable" ? null : { has: isFollowed, toggle: follow } }));
/** The place that had a session last. */
let last = address.state;
const page = store.signals;
const place = signal(address.state);
address.subscribe((next) => void (place.value = next));
/** The archived sessions, once they were asked for, and the machine that was chosen. */
/** @type {import("../vendor/signals_core.js").Signal<import("./state/sessions.js").Session[]|null>} */
const archived = signal(null);
const machine = signal(keptChoice(kept));
const isOld = signal(false);
versions.subscribe((old) => void (isOld.value = old));
/** The sessions that the list may show, and those of them on the chosen machine. */
const listed = computed(() => {
  const sessions = page.inOrder.value;
  const more = archived.value;
  if (more === null) return sessions.filter((one) => !one.archived);
  const known = page.sessions.value;
  return [...sessions, ...more.filter((one) => !known.has(one.id))];
});
const here = computed(() => onMachine(listed.value, machine.value, machinesOf(listed.value, page.agents.value)));
/** What is shown is of the present, not what the browser has kept. */
const isPresent = computed(() => page.listed.value && !page.connection.value.readAt);
/** The sessions that the address names, each with its holder in the store, and with its signals once it is open. */
const layout = computed(() => {
  const { route, pane, moves } = place.value;
  const only = page.info.value?.session ?? null;
  const parts = only === null ? partsOf(route) : [{ ...route, sessionId: only }];
  const wanted = parts.map(({ sessionId }) => /** @type {string} */ (sessionId));
  const held = page.panes.map((open) => open.id.value);
  const shown = assigned(wanted, held).map((i, at) => ({ holder: i, part: parts[at], open: held[i] === null ? null : page.panes[i] }));
  const isTwo = shown.length > 1 && shown.every(({ open }) => open !== null);
  const inUse = only === null ? pane : 0;
  return { route, moves, only, wanted, shown, isTwo, inUse, used: shown[isTwo ? inUse : 0] ?? null };
});
/** The session in use, as the list has it. */
const inUse = computed(() => layout.value.used?.open?.session.value ?? null);
/** Whether a session can be opened beside the one in use, or that was in use last. */
const mayOpenBeside = computed(() => {
  if (place.value.route.sessionId !== null) last = place.value;
  const { only, used } = layout.value;
  return only === null && ((used?.open ?? null) !== null || page.sessions.value.has(last.route.sessionId ?? ""));
});
/** Connects at once. */
const reconnect = () => rpc.wake();
/** Opens a session beside the one in use, or that was in use last. */
const openBeside = (part) => address.go(besideOf(address.route.sessionId === null ? last : address, part));
// A phone may end a hidden page without another word.
const keepAll = () => {
  store.keepCopy();
  store.keepList();
};
addEventListener("pagehide", keepAll);
document.addEventListener("visibilitychange", () => document.hidden && keepAll());

/** Said where a page that was connected is refused: signed out elsewhere, its token revoked, or its time over. */
const SIGNED_OUT = "This browser is not signed in any more.";

/** Dialogs about the open session. */
const OF_SESSION = ["share", "export", "rename", "delete", "beside"];

/** Name of the note, for the next load of the page, that something was not sent. */
const LEFT = "left unsent";

/** Name of the note, for the next load of the page, of the number of unsent prompts that signing out has removed. */
const REMOVED = "removed unsent";

/** Load the page again, without what belongs to the person that was signed in before. */
async function startAfresh(isLeft = false, removed = 0) {
  store.forgetCopy();
  await keeper.forget();
  if (isLeft) keep(tab, LEFT, "1");
  if (removed > 0) keep(tab, REMOVED, String(removed));
  location.reload();
}

/** Whether a person is told of each end of a turn of a session. */
function isFollowed(id) {
  return push.done.sessions.includes(id);
}

/** Tell of each end of a turn of a session, or no more; asks the browser to allow that. */
async function follow(id) {
  const { after, sessions } = push.done;
  const others = sessions.filter((one) => one !== id);
  try {
    if (others.length < sessions.length) await push.setDone({ after, sessions: others });
    else {
      const answer = attention.permission === "default" ? await attention.ask() : attention.permission;
      if (answer !== "granted") throw new Error(DENIED);
      if (push.available && !(await push.state()).subscribed) await push.turnOn({ quiet: null, session: null });
      await push.setDone({ after, sessions: [...sessions, id] });
    }
    store.toast("info", !isFollowed(id) ? "You will not be told when it is done." : push.available ? "You will be told when it is done." : "You will be told when it is done, while this page is open.");
  } catch (error) {
    store.toast("error", error.message);
  }
}

/** Carries out what follows from the state beside what is drawn. */
function followState() {
  const line = computed(() => page.connection.value.line);
  effect(() => void (line.value > 0 && versions.connected(line.value)));
  effect(() => attention.update(page.inOrder.value, inUse.value, push.done));
}

function App() {
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const [code, setCode] = useState(/** @type {any} */ (null));
  const [removed, setRemoved] = useState(/** @type {any} */ (null));
  const wide = useMedia(WIDE);
  const hasRoom = useMedia(BOARD);
  const hasRoomBeside = useMedia(ROOM);

  useEffect(followState, []);
  useEffect(() => {
    setRemoved(removedText(Number(read(tab, REMOVED))));
    keep(tab, REMOVED, null);
    if (read(tab, LEFT) === null) return;
    keep(tab, LEFT, null);
    store.toast("error", "Someone else is signed in now. What waited for the connection was not sent.");
  }, []);
  useEffect(() => {
    let begun = false;
    const follow = async () => {
      await finishSignOut(kept, () => setProblem("The gateway does not answer. Signing out is tried again."));
      setProblem(null);
      const next = parseRoute(location.hash);
      if (next.code !== null) {
        history.replaceState(null, "", makeRoute(next));
        const failure = await signIn(next.code).then(() => null, (error) => error);
        if (failure === null) {
          store.forgetCopy();
          await keeper.forget(begun);
        }
        setProblem(failure?.message ?? null);
        // It may be unused.
        setCode(failure instanceof NoAnswer ? next.code : null);
        // What is here belongs to the person that was signed in before.
        if (failure === null && begun) location.reload();
      }
      if (!begun) void store.showKept();
      begun = true;
      address.read();
      home.connect();
    };
    follow();
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);

  const isListed = page.listed.value;
  useEffect(() => void (code !== null && problem !== null && isListed && store.toast("error", problem)), [code, problem, isListed]);

  const { route, moves, only, wanted, shown, isTwo, inUse: pane, used } = layout.value;
  const info = page.info.value;
  const open = used?.open ?? null;
  const id = open?.id.value ?? null;
  const act = actionsOf[used?.holder ?? 0];
  useEffect(() => store.show(wanted), [JSON.stringify(wanted)]);
  const isNow = isPresent.value;
  // Where this fails, notifications stay as they are.
  useEffect(() => void (isNow && info?.role !== "observer" && push.refresh().catch(() => {})), [isNow]);
  // After the list, which it would delay.
  useEffect(() => void (isNow && window.isSecureContext && attention.registered()), [isNow]);
  const setDialog = (name, of = id) => setAsked(name === null ? null : { name, id: of });
  // A dialog about the session before is not one about this one.
  const isOfOther = (one) => one !== null && OF_SESSION.includes(one.name) && one.id !== id;
  useEffect(() => setAsked((one) => (isOfOther(one) ? null : one)), [id]);
  const dialog = asked === null || isOfOther(asked) ? null : asked.name;
  const toBeside = hasRoomBeside && mayOpenBeside.value ? openBeside : null;
  useOpenBeside(toBeside);
  useEffect(() => setDialog(route.agent === null ? null : "new"), [route.agent]);
  useEffect(() => void (dialog === "new" && store.refreshAgents()), [dialog]);

  if (page.phase.value === "refused") return html`<${SignIn} problem=${problem ?? (page.wasSignedIn.value ? SIGNED_OUT : null)} code=${code}
    left=${page.left.value ?? removed} onForget=${page.left.value === null || store.drafts.all().length === 0 ? null : () => setRemoved(removedText(store.forgetDrafts()))} done=${() => startAfresh()} />`;
  if (!isListed) return html`<${Splash} problem=${problem} onRetry=${code === null ? null : () => (location.hash = `#${code}${makeRoute(route).slice(1)}`)} />`;

  const hasBoard = hasRoom && only === null;
  if (info === null) return null;
  const showBoard = hasBoard && route.board && open === null;
  const showList = only === null && !showBoard && (wide || open === null);
  const showView = wide || open !== null;
  const mayStart = info.role !== "observer" && !info.guest;
  const mayBeNotified = info.role !== "observer" && (attention.permission !== "unavailable" || attention.isApple);
  const maySeeMachine = !info.guest && only === null;
  const onNew = mayStart ? () => setDialog("new") : null;
  const leavePane = () => address.go(closedOf(route, pane));
  const panes = {
    choose: toBeside && open !== null ? () => setDialog("beside") : null,
    toOther: isTwo ? () => address.use(1 - pane, true) : null,
    close: isTwo ? leavePane : null,
  };
  const top = html`<${Line} /><${Notices} />`;
  return html`<div class=${classes("app", showList && showView && "is-split")}>
    <${PageCommands} here=${here} hasBoard=${hasBoard} open=${open} panes=${panes} show=${setDialog} canStart=${mayStart}
      canShare=${info.mayShare} canRename=${info.role !== "observer" && !info.guest} canBeNotified=${mayBeNotified} canSeeMachine=${maySeeMachine} turnTheme=${turnTheme} tell=${tell} />
    ${showList && html`<${showView ? "div" : "main"} class="side">
      ${!showView && top}
      <${SessionList} page=${page} listed=${listed} archived=${archived} machine=${machine} currentId=${id} besideId=${isTwo ? wanted[1 - pane] : null} openBeside=${toBeside}
        onLook=${maySeeMachine ? () => setDialog("machine") : null} onCosts=${maySeeMachine ? () => setDialog("costs") : null} onArchived=${showArchived} onNew=${onNew} onNotifications=${mayBeNotified ? () => setDialog("notifications") : null} onSignOut=${leave}
        onSearch=${store.search} onDisk=${mayStart ? store.diskSessions : null} onDiskOpen=${store.openOnDisk} hasBoard=${hasBoard} onMachineChoice=${chooseMachine} />
    </${showView ? "div" : "main"}>`}
    ${open !== null
      ? html`<main class=${classes("panes", isTwo && "is-two")}>
          ${isTwo && html`<div class="panes-top">${top}</div>`}
          ${(isTwo ? shown : [used]).map((one, at) => {
            const use = () => address.use(at);
            const ask = (name) => () => {
              use();
              setDialog(name, one.open?.id.value);
            };
            const its = { isTwo, isUsed: at === pane, isUsedNow: () => only !== null || at === address.pane, use, moves };
            const close = isTwo ? () => address.go(closedOf(route, at)) : null;
            return html`<${SessionView} key=${one.holder} page=${page} open=${one.open} store=${actionsOf[one.holder]} route=${one.part} pane=${its}
              panes=${{ ...panes, close }} onBack=${wide || only !== null ? null : () => {}}
              onShare=${ask("share")} onExport=${ask("export")} onRename=${ask("rename")} onDelete=${ask("delete")}>
              ${!isTwo && top}
            </${SessionView}>`;
          })}
        </main>`
      : showBoard ? html`<${Board} page=${page} here=${here} top=${top} lastLines=${store.lastLines} openBeside=${toBeside} onNew=${onNew} />`
      : showView && html`<${NothingOpen} top=${top} onNew=${onNew} />`}
    <${Dialogs} dialog=${dialog} open=${open} act=${act} wanted=${wanted} preferred=${route.agent} mayStart=${mayStart} openBeside=${toBeside} setDialog=${setDialog}
      onDeleted=${() => (isTwo ? leavePane() : (location.hash = makeRoute()))} />
  </div>`;
}

const tell = (text) => store.toast("info", text);

async function showArchived(isShown) {
  const answer = isShown ? await rpc.request("session/list", { archived: true }).catch((error) => store.toast("error", error.message)) : null;
  archived.value = answer?.sessions ?? null;
}

function chooseMachine(name) {
  keepChoice(kept, name);
  machine.value = name;
}

async function leave() {
  const removed = store.forgetDrafts();
  store.forgetCopy();
  void keeper.forget();
  await within(window, push.forget()).catch(() => {});
  await signOut(kept);
  startAfresh(false, removed);
}

/** The dialog that is open, if there is one. */
function Dialogs({ dialog, open, act, wanted, preferred, mayStart, openBeside, setDialog, onDeleted }) {
  if (dialog === null) return null;
  const connection = page.connection.value;
  const agents = page.agents.value;
  const session = open?.session.value ?? null;
  const close = () => {
    setDialog(null);
    if (parseRoute(location.hash).agent !== null) location.hash = makeRoute();
  };
  const create = async (options, prompt) => {
    location.hash = makeRoute({ sessionId: await act.newSession(options) });
    if (prompt) act.prompt([{ type: "text", text: prompt }]);
  };
  const remove = async (worktree) => {
    await store.remove(open.id.peek(), worktree);
    onDeleted();
  };
  const shared = { connection, onClose: close };
  if (dialog === "new") return mayStart && html`<${NewSession} ...${shared} agents=${agents} preferred=${preferred} machine=${machine.value} draft=${store.drafts.get("")} onDraft=${(text) => store.drafts.set("", text)} create=${create} />`;
  if (dialog === "notifications") return html`<${Notifications} ...${shared} sessions=${page.inOrder.value} attention=${attention} push=${push} />`;
  if (dialog === "machine") return html`<${MachineCards} ...${shared} look=${() => rpc.request("gateway/machine", {}, { quiet: true })} />`;
  if (dialog === "costs") return html`<${Costs} ...${shared} look=${(wanted) => rpc.request("gateway/usage", wanted, { quiet: true })} />`;
  if (dialog === "share") return html`<${Share} ...${shared} share=${act.share} />`;
  if (dialog === "export") return html`<${Export} ...${shared} exportSession=${act.exportSession} />`;
  if (dialog === "palette") return html`<${Palette} key="palette" ...${shared} sessions=${listed.value} agents=${agents} openBeside=${openBeside} />`;
  if (dialog === "beside") return html`<${Palette} key="beside" ...${shared} sessions=${listed.value.filter(({ id }) => !wanted.includes(id))} agents=${agents} isBeside=${true} openBeside=${openBeside} />`;
  if (dialog === "rename") return session && html`<${Rename} ...${shared} session=${session} rename=${act.rename} />`;
  if (dialog === "keys") return html`<${KeySheet} ...${shared} />`;
  return open && html`<${Delete} ...${shared} session=${session} remove=${remove} />`;
}

/** The state of the connection in words, unless there is nothing to say. */
function Line() {
  return html`<${ConnectionLine} connection=${page.connection.value} onRetry=${reconnect} />`;
}

/** What the page tells, above what it shows. */
function Notices() {
  return html`<${NewVersion} isOld=${isOld.value} onReload=${versions.reload} /><${Toasts} />`;
}

/** What is shown until the gateway has answered for the first time. */
function Splash({ problem, onRetry }) {
  return html`<main class="splash">
    <p class="message" role="status">${page.phase.value === "connected" ? "Loading…" : "Connecting to the gateway…"}</p>
    ${page.phase.value === "away" && html`<${Line} />`}
    ${problem !== null && html`<p class="error" role="alert">${sentence(problem)}</p>`}
    ${onRetry !== null && html`<button class="secondary" onClick=${onRetry}>Sign in again</button>`}
    <${Toasts} />
    ${page.toasts.value.length > 0 && html`<button class="secondary" onClick=${() => location.reload()}>Try again</button>`}
  </main>`;
}

function NothingOpen({ top, onNew }) {
  return html`<main class="view is-empty">
    ${top}
    <div class="message">
      <p>Choose a session from the list${onNew ? ", or start a new one." : "."}</p>
      ${onNew && html`<button class="primary" onClick=${onNew}><${Icon} name="plus" />New session</button>`}
    </div>
  </main>`;
}

function Delete({ session, connection, remove, onClose }) {
  const [state, setState] = useState({ busy: false, error: /** @type {any} */ (null) });
  const [worktree, setWorktree] = useState(false);
  const tree = treeOf(session?.cwd ?? "");
  const run = () => {
    setState({ busy: true, error: null });
    remove(worktree).then(onClose, (failure) => setState({ busy: false, error: failure.message }));
  };
  return html`<${Dialog} title="Delete this session?" connection=${connection} onClose=${onClose}>
    <p>“<bdi>${session ? titleOf(session) : "It"}</bdi>” and its history are removed for everyone. This can't be undone.</p>
    ${tree && html`<label class="field is-check"><input type="checkbox" checked=${worktree} onChange=${(event) => setWorktree(event.target.checked)} />
      <span>Remove its worktree too <span class="muted path"><bdi>${visible(tree)}</bdi></span></span>
    </label>`}
    ${state.error && html`<p class="error" role="alert">${sentence(state.error)}</p>`}
    <div class="dialog-actions">
      <button class="secondary" autofocus onClick=${onClose}>Keep it</button>
      <button class="primary is-danger" disabled=${state.busy} onClick=${run}>Delete</button>
    </div>
  </${Dialog}>`;
}

/** Messages of the page, in its flow: they cover nothing, and none hides another. */
function Toasts() {
  const toasts = page.toasts.value;
  return html`<div class="toasts" role="status" aria-atomic="false">
    ${toasts.map((toast) => html`<${Toast} key=${toast.id} toast=${toast} text=${toastText(toast, page.sessions.value)} />`)}
  </div>`;
}

function Toast({ toast, text }) {
  useEffect(() => {
    const timer = setTimeout(() => store.dismiss(toast.id), TOAST_TIME[toast.kind]);
    return () => clearTimeout(timer);
  }, []);
  return html`<p class=${classes("toast", `is-${toast.kind}`)}>
    <span dir="auto">${text}</span>
    <button class="icon-button" aria-label="Dismiss" onClick=${() => store.dismiss(toast.id)}><${Icon} name="close" /></button>
  </p>`;
}

followViewport(window);
followKeys(document);
watchSigns(window, rpc.wake);
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
