/** The head of a session: title, agent, folder, presence and usage; and the state of the connection in words. */
import { html } from "../parts/html.js";
import { shortPath, titleOf, visible } from "../../text/format.js";
import { classes, NARROW, useMedia, useNow } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { MachineBadge } from "../list/machine_switch.js";
import { agentText, awayText, machineText } from "../../state/machines.js";
import { ActionMenu } from "./menus.js";
import { makeRoute } from "../../route/route.js";
import { connectionText, costText, outageOf, presenceText, statusOf, usageText } from "../../text/words.js";

/** The head. Buttons that change something are left out for an observer. `page` and `usage` are signals; `panes` has actions on two side by side, each null where it is of no use; `files` tells whether they are shown, null if they may not be. */
export function Header({ session, isKnown, page, usage, changes, files, onBack, onShare, actions, panes }) {
  const connection = page.connection.value;
  const info = page.info.value;
  const now = useNow(connection.phase === "away" ? 500 : 30000);
  const narrow = useMedia(NARROW);
  const mayShare = isKnown && info?.mayShare;
  const presence = presenceText(session.clients);
  const isLost = outageOf(connection, now) !== null;
  const status = isLost ? { name: "away", text: "No connection" } : statusOf(session);
  const reading = [
    ...(panes.choose ? [{ label: "Open another beside…", icon: "beside", run: panes.choose }] : []),
    ...(panes.toOther ? [{ label: "To the session beside", icon: "beside", run: panes.toOther }] : []),
    ...(isKnown ? [
      { label: "Find in this session", icon: "search", run: actions.find },
      { label: "Export…", icon: "down", run: actions.exportSession },
    ] : []),
    ...(files !== null && narrow ? [{ label: "Files", icon: "folder", run: () => void (location.hash = makeRoute({ sessionId: session.id, file: "" })) }] : []),
    ...(mayShare && narrow ? [{ label: "Share", icon: "share", run: onShare }] : []),
  ];
  const menu = session.mayControl === false || info?.guest ? reading : [
    ...reading,
    ...(isKnown && actions.follow ? [{
      label: actions.follow.has(session.id) ? "Do not tell me when it is done" : "Tell me when it is done", icon: "bell",
      run: () => actions.follow.toggle(session.id),
    }] : []),
    ...(actions.fork ? [{ label: "Fork", icon: "copy", run: actions.fork }] : []),
    ...(isKnown ? [{ label: "Rename…", icon: "edit", run: actions.rename }] : []),
    { label: session.archived ? "Take out of the archive" : "Archive", icon: "archive", run: actions.archive },
    { label: "Delete…", icon: "delete", danger: true, run: actions.remove },
  ];
  return html`<header class="head">
    ${onBack && html`<a class="icon-button back" href="#/" aria-label="All sessions" onClick=${onBack}><${Icon} name="back" /></a>`}
    <div class="head-text">
      <h1 dir="auto">${titleOf(session)}</h1>
      <p class="head-facts">
        ${isKnown && html`<span class=${classes("state", `is-${status.name}`)}>${session.unreachableSince && !isLost
          ? `${machineText(session.machine)} is ${awayText(session.unreachableSince, now)}` : status.text}</span>`}
        ${!session.unreachableSince && html`<${MachineBadge} ...${session} />`}
        <span>${visible(agentText(session, page.agents.value))}</span>
        ${session.fence && html`<span title=${`The agent uses only the workspaces and its own folders (by ${visible(session.fence)})`}>fenced</span>`}
        <span class="path">${visible(session.workspace ?? "") || shortPath(session.cwd)}</span>
        ${presence && html`<span class="presence">${presence}</span>`}
      </p>
    </div>
    <${Usage} usage=${usage.value} tell=${actions.tell} />
    ${isKnown && html`<a class="icon-button" href=${makeRoute({ sessionId: session.id, changes: !changes })} aria-label="Changes" title="Changes" aria-current=${changes ? "page" : undefined}><${Icon} name="changes" /></a>`}
    ${files !== null && !narrow && html`<a class="icon-button" href=${makeRoute({ sessionId: session.id, file: files ? null : "" })} aria-label="Files" title="Files" aria-current=${files ? "page" : undefined}><${Icon} name="folder" /></a>`}
    ${mayShare && !narrow && html`<button class="icon-button" aria-label="Share" title="Share" onClick=${onShare}><${Icon} name="share" /></button>`}
    ${menu.length > 0 && html`<${ActionMenu} key=${session.id} label="More" actions=${menu} />`}
    ${panes.close && html`<button class="icon-button" aria-label=${`Close ${titleOf(session)}`} title="Close, and keep the other one" onClick=${panes.close}><${Icon} name="close" /></button>`}
  </header>`;
}

/** How much of its context the agent has used, and what that has cost; a click tells it in words. */
function Usage({ usage, tell }) {
  const text = usageText(usage);
  if (text === null) return null;
  const percent = Math.min(100, Math.round((usage.used / usage.size) * 100));
  return html`<button class="usage" title=${text} aria-label=${text} onClick=${() => tell(`${text}.`)}>
    <svg viewBox="0 0 20 20" aria-hidden="true">
      <circle class="usage-all" cx="10" cy="10" r="7" pathLength="100" />
      <circle class="usage-part" cx="10" cy="10" r="7" pathLength="100" stroke-dasharray=${`${percent} 100`} />
    </svg>
    <span aria-hidden="true">${percent}%</span>
    ${costText(usage) && html`<span aria-hidden="true">${costText(usage)}</span>`}
  </button>`;
}

/** A line with the state of the connection, unless there is nothing to say. */
export function ConnectionLine({ connection, onRetry }) {
  const now = useNow(connection.phase === "connected" ? 60000 : 500);
  const text = connectionText(connection, now);
  if (text === null) return html`<div class="connection-space" role="status"></div>`;
  return html`<div class="connection-space" role="status">
    <p class=${classes("connection", `is-${connection.phase}`)}>
      <span>${text}</span>
      ${connection.phase === "away" && onRetry && html`<button class="quiet" onClick=${onRetry}>Try now</button>`}
    </p>
  </div>`;
}
