/** The page: connects, follows the address, and shows the list beside the open sessions. */
import { html, render, useEffect, useState } from "../vendor/standalone.module.js";
import { createAddress } from "./address.js";
import { createAttention, DENIED } from "./attention.js";
import { followKeys } from "./command_keys.js";
import { Dialog } from "./dialog.js";
import { sentence, titleOf } from "./format.js";
import { ConnectionLine } from "./header.js";
import { classes, useMedia } from "./hooks.js";
import { createKeeper } from "./keeper.js";
import { keep, read, storageOf } from "./kept.js";
import { KeySheet } from "./key_sheet.js";
import { later, parts } from "./later.js";
import { keepChoice, keptChoice, machinesOf, onMachine } from "./machines.js";
import { NoAnswer, within } from "./http.js";
import { Icon } from "./icons.js";
import { frameOf } from "./frames.js";
import { NewSession } from "./new_session.js";
import { createVersions, NewVersion } from "./new_version.js";
import { PageCommands } from "./page_commands.js";
import { Palette } from "./palette.js";
import { assigned, besideOf, BOARD, closedOf, partsOf, ROOM } from "./panes.js";
import { useOpenBeside } from "./panes_view.js";
import { createPush } from "./push.js";
import { makeRoute, parseRoute } from "./route.js";
import { reader } from "./code_reader.js";
import { createReach } from "./reach.js";
import { createRpc, globalTimers } from "./rpc.js";
import { SessionList } from "./session_list.js";
import { SessionView } from "./session_view.js";
import { watchSigns } from "./signs.js";
import { finishSignOut, isSignedIn, SignIn, signIn, signOut } from "./sign_in.js";
import { createStore } from "./store.js";
import { createTheme } from "./theme.js";
import { followViewport } from "./viewport.js";
import { removedText } from "./unsent.js";
import { toastText } from "./words.js";

const Board = later(() => import("./board.js"), "Board");
const Export = later(() => import("./export.js"), "Export");
const Notifications = later(() => import("./notifications.js"), "Notifications");
const Rename = later(() => import("./rename.js"), "Rename");
const Share = later(() => import("./share.js"), "Share");

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
  onNotification: (method, params) => (method === "machines/changed" ? rpc.follow(params.machines) : store.onNotification(method, params)),
  isOther: (info) => store.isOther(info),
  isBusy: () => isBusy(),
  isHidden,
});
const rpc = createReach(home, async () => {
  const { createFleet } = await import("./fleet.js");
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
store.reconnect = () => rpc.wake();
/** What is done with each open session, and what its view needs beside that. */
const actionsOf = store.panes.map((actions) => ({ ...actions, toast: store.toast, archive: store.archive, follow: attention.permission === "unavailable" ? null : { has: isFollowed, toggle: follow } }));
/** The place that had a session last. */
let last = address.state;
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

function App() {
  const [state, setState] = useState(store.state);
  const [place, setPlace] = useState(address.state);
  const { route } = place;
  const [problem, setProblem] = useState(null);
  const [asked, setAsked] = useState(null);
  const [code, setCode] = useState(null);
  const [archived, setArchived] = useState(null);
  const [machine, setMachine] = useState(() => keptChoice(kept));
  const [isOld, setOld] = useState(false);
  const [removed, setRemoved] = useState(null);
  const wide = useMedia(WIDE);
  const hasRoom = useMedia(BOARD);
  const hasRoomBeside = useMedia(ROOM);

  useEffect(() => versions.subscribe(setOld), []);
  useEffect(() => void (state.connection.line > 0 && versions.connected(state.connection.line)), [state.connection.line]);
  useEffect(() => store.subscribe(setState), []);
  useEffect(() => address.subscribe(setPlace), []);
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

  useEffect(() => void (code !== null && problem !== null && state.listed && store.toast("error", problem)), [code, problem, state.listed]);

  const only = state.info?.session ?? null;
  const parts = only === null ? partsOf(route) : [{ ...route, sessionId: only }];
  const wanted = parts.map(({ sessionId }) => sessionId);
  const held = [state.current, state.beside];
  const shown = assigned(wanted, held.map((one) => one?.id ?? null)).map((i, at) => ({ holder: i, part: parts[at], current: held[i] }));
  const isTwo = shown.length > 1 && shown.every(({ current }) => current !== null);
  const inUse = only === null ? place.pane : 0;
  const used = shown[isTwo ? inUse : 0] ?? null;
  const current = used?.current ?? null;
  const act = actionsOf[used?.holder ?? 0];
  if (route.sessionId !== null) last = place;
  useEffect(() => store.show(wanted), [JSON.stringify(wanted)]);
  const setDialog = (name, id = current?.id) => setAsked(name === null ? null : { name, id });
  // A dialog about the session before is not one about this one.
  const isOfOther = (one) => one !== null && OF_SESSION.includes(one.name) && one.id !== current?.id;
  useEffect(() => setAsked((one) => (isOfOther(one) ? null : one)), [current?.id]);
  const dialog = asked === null || isOfOther(asked) ? null : asked.name;
  const toBeside = hasRoomBeside && only === null && (current !== null || state.sessions.has(last.route.sessionId)) ? openBeside : null;
  useOpenBeside(toBeside);
  const isPresent = state.listed && !state.connection.readAt;
  // Where this fails, notifications stay as they are.
  useEffect(() => void (isPresent && state.info.role !== "observer" && push.refresh().catch(() => {})), [isPresent]);
  // After the list, which it would delay.
  useEffect(() => void (isPresent && window.isSecureContext && attention.registered()), [isPresent]);
  useEffect(() => setDialog(route.agent === null ? null : "new"), [route.agent]);
  useEffect(() => void (dialog === "new" && store.refreshAgents()), [dialog]);
  const sessions = state.order.map((id) => state.sessions.get(id));
  useEffect(() => attention.update(sessions, current?.session ?? null, push.done), [state.sessions, current?.session]);

  if (state.connection.phase === "refused") return html`<${SignIn} problem=${problem ?? (state.wasSignedIn ? SIGNED_OUT : null)} code=${code}
    left=${state.left ?? removed} onForget=${state.left === null || store.drafts.all().length === 0 ? null : () => setRemoved(removedText(store.forgetDrafts()))} done=${() => startAfresh()} />`;
  if (!state.listed) return html`<${Splash} state=${state} problem=${problem} onRetry=${code === null ? null : () => (location.hash = `#${code}${makeRoute(route).slice(1)}`)} />`;

  const close = () => {
    setDialog(null);
    if (parseRoute(location.hash).agent !== null) location.hash = makeRoute();
  };
  const showArchived = async (shown) => {
    const answer = shown ? await rpc.request("session/list", { archived: true }).catch((error) => store.toast("error", error.message)) : null;
    setArchived(answer?.sessions ?? null);
  };
  const chooseMachine = (name) => {
    keepChoice(kept, name);
    setMachine(name);
  };
  const leave = async () => {
    const removed = store.forgetDrafts();
    store.forgetCopy();
    void keeper.forget();
    await within(window, push.forget()).catch(() => {});
    await signOut(kept);
    startAfresh(false, removed);
  };
  const create = async (options, prompt) => {
    location.hash = makeRoute({ sessionId: await act.newSession(options) });
    if (prompt) act.prompt([{ type: "text", text: prompt }]);
  };
  const known = new Set(state.order);
  const listed = [...sessions.filter((one) => archived !== null || !one.archived), ...(archived ?? []).filter((one) => !known.has(one.id))];
  const hasBoard = hasRoom && only === null;
  const here = onMachine(listed, machine, machinesOf(listed, state.agents));
  const showBoard = hasBoard && route.board && current === null;
  const showList = only === null && !showBoard && (wide || current === null);
  const showView = wide || current !== null;
  const panes = {
    choose: toBeside && current !== null ? () => setDialog("beside") : null,
    toOther: isTwo ? () => address.use(1 - inUse, true) : null,
    close: isTwo ? () => address.go(closedOf(route, inUse)) : null,
  };
  const notices = html`<${NewVersion} isOld=${isOld} onReload=${versions.reload} /><${Toasts} state=${state} />`;
  const line = html`<${ConnectionLine} connection=${state.connection} onRetry=${store.reconnect} />`;
  const mayBeNotified = state.info.role !== "observer" && (attention.permission !== "unavailable" || attention.isApple);
  const mayStart = state.info.role !== "observer" && !state.info.guest;
  return html`<div class=${classes("app", showList && showView && "is-split")}>
    <${PageCommands} sessions=${here} hasBoard=${hasBoard} current=${current} panes=${panes} show=${setDialog} canStart=${mayStart}
      canShare=${state.info.mayShare} canRename=${state.info.role !== "observer" && !state.info.guest} canBeNotified=${mayBeNotified} turnTheme=${turnTheme} tell=${(text) => store.toast("info", text)} />
    ${showList && html`<${showView ? "div" : "main"} class="side">
      ${!showView && html`${line}${notices}`}
      <${SessionList} sessions=${listed} listed=${state.listed} more=${state.more + state.moreThere} agents=${state.agents} currentId=${current?.id ?? null} besideId=${isTwo ? wanted[1 - inUse] : null} openBeside=${toBeside} info=${state.info}
        connection=${state.connection}
        archivedShown=${archived !== null} onArchived=${showArchived} onNew=${mayStart ? () => setDialog("new") : null}
        onNotifications=${mayBeNotified ? () => setDialog("notifications") : null} onSignOut=${leave} onSearch=${store.search} onDisk=${mayStart ? store.diskSessions : null} onDiskOpen=${store.openOnDisk} hasBoard=${hasBoard} machine=${machine} onMachineChoice=${chooseMachine} />
    </${showView ? "div" : "main"}>`}
    ${current !== null
      ? html`<main class=${classes("panes", isTwo && "is-two")}>
          ${isTwo && html`<div class="panes-top">${line}${notices}</div>`}
          ${(isTwo ? shown : [used]).map((one, at) => {
            const use = () => address.use(at);
            const ask = (name) => () => {
              use();
              setDialog(name, one.current.id);
            };
            const pane = { isTwo, isUsed: at === inUse, isUsedNow: () => only !== null || at === address.pane, use, moves: place.moves };
            const close = isTwo ? () => address.go(closedOf(route, at)) : null;
            return html`<${SessionView} key=${one.holder} state=${state} current=${one.current} store=${actionsOf[one.holder]} route=${one.part} pane=${pane}
              panes=${{ ...panes, close }} onBack=${wide || only !== null ? null : () => {}}
              onShare=${ask("share")} onExport=${ask("export")} onRename=${ask("rename")} onDelete=${ask("delete")}>
              ${!isTwo && html`${line}${notices}`}
            </${SessionView}>`;
          })}
        </main>`
      : showBoard ? html`<${Board} sessions=${here} agents=${state.agents} connection=${state.connection} notices=${notices} lastLines=${store.lastLines} openBeside=${toBeside}
          onNew=${mayStart ? () => setDialog("new") : null} onRetry=${store.reconnect} />`
      : showView && html`<${NothingOpen} notices=${notices} connection=${state.connection} mayStart=${mayStart} onNew=${() => setDialog("new")} />`}
    ${dialog === "new" && mayStart && html`<${NewSession} agents=${state.agents} preferred=${route.agent} machine=${machine} connection=${state.connection} draft=${store.drafts.get("")} onDraft=${(text) => store.drafts.set("", text)} onClose=${close} create=${create} />`}
    ${dialog === "notifications" && html`<${Notifications} connection=${state.connection} sessions=${sessions} attention=${attention} push=${push} onClose=${close} />`}
    ${dialog === "share" && html`<${Share} connection=${state.connection} share=${act.share} onClose=${close} />`}
    ${dialog === "export" && html`<${Export} connection=${state.connection} exportSession=${act.exportSession} onClose=${close} />`}
    ${["palette", "beside"].includes(dialog) && html`<${Palette} key=${dialog} sessions=${dialog === "palette" ? listed : listed.filter(({ id }) => !wanted.includes(id))} agents=${state.agents}
      connection=${state.connection} isBeside=${dialog === "beside"} openBeside=${toBeside} onClose=${close} />`}
    ${dialog === "rename" && current?.session && html`<${Rename} session=${current.session} connection=${state.connection} onClose=${close} rename=${act.rename} />`}
    ${dialog === "keys" && html`<${KeySheet} connection=${state.connection} onClose=${close} />`}
    ${dialog === "delete" && current && html`<${Delete} session=${current.session} connection=${state.connection} onClose=${close} remove=${async () => {
      await store.remove(current.id);
      if (isTwo) address.go(closedOf(route, inUse));
      else location.hash = makeRoute();
    }} />`}
  </div>`;
}

/** What is shown until the gateway has answered for the first time. */
function Splash({ state, problem, onRetry }) {
  const { connection, toasts } = state;
  return html`<main class="splash">
    <p class="message" role="status">${connection.phase === "connected" ? "Loading…" : "Connecting to the gateway…"}</p>
    ${connection.phase === "away" && html`<${ConnectionLine} connection=${connection} onRetry=${store.reconnect} />`}
    ${problem !== null && html`<p class="error" role="alert">${sentence(problem)}</p>`}
    ${onRetry !== null && html`<button class="secondary" onClick=${onRetry}>Sign in again</button>`}
    <${Toasts} state=${state} />
    ${toasts.length > 0 && html`<button class="secondary" onClick=${() => location.reload()}>Try again</button>`}
  </main>`;
}

function NothingOpen({ connection, notices, mayStart, onNew }) {
  return html`<main class="view is-empty">
    <${ConnectionLine} connection=${connection} onRetry=${store.reconnect} />
    ${notices}
    <div class="message">
      <p>Choose a session from the list${mayStart ? ", or start a new one." : "."}</p>
      ${mayStart && html`<button class="primary" onClick=${onNew}><${Icon} name="plus" />New session</button>`}
    </div>
  </main>`;
}

function Delete({ session, connection, remove, onClose }) {
  const [error, setError] = useState(null);
  const run = () => remove().then(onClose, (failure) => setError(failure.message));
  return html`<${Dialog} title="Delete this session?" connection=${connection} onClose=${onClose}>
    <p>“<bdi>${session ? titleOf(session) : "It"}</bdi>” and its history are removed for everyone. This can't be undone.</p>
    ${error && html`<p class="error" role="alert">${sentence(error)}</p>`}
    <div class="dialog-actions">
      <button class="secondary" autofocus onClick=${onClose}>Keep it</button>
      <button class="primary is-danger" onClick=${run}>Delete</button>
    </div>
  </${Dialog}>`;
}

/** Messages of the page, in its flow: they cover nothing, and none hides another. */
function Toasts({ state: { toasts, sessions } }) {
  return html`<div class="toasts" role="status" aria-atomic="false">
    ${toasts.map((toast) => html`<${Toast} key=${toast.id} toast=${toast} text=${toastText(toast, sessions)} />`)}
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
render(html`<${App} />`, document.getElementById("app"));
