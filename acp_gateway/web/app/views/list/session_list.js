/** The list of sessions: those that need the user first, then live ones, then earlier ones. */
import { useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { DiskSessions } from "./disk_sessions.js";
import { ageText, shortPath, titleOf, visible } from "../../text/format.js";
import { classes, Pure, useNow } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { MachineBadge, MachineSwitch } from "./machine_switch.js";
import { spentText } from "../../text/costs.js";
import { agentText, machinesOf, onMachine } from "../../state/machines.js";
import { BesideButton } from "../session/panes_view.js";
import { makeRoute } from "../../route/route.js";
import { TextSearch } from "./text_search.js";
import { grouped, matches, outageOf, statusOf } from "../../text/words.js";

/** Sessions from which on a filter is of use. */
const FILTER_FROM = 6;

/** Rows that are drawn at first, and with each further click: a person filters before that many. */
const ROWS = 300;

/** `page`, `listed`, `archived` and `machine` are signals: of the page, its sessions, the archived ones, and the chosen machine. */
export function SessionList({ page, listed, archived, machine, currentId, besideId, openBeside, onArchived, onNew, onNotifications, onLook, onCosts, onSignOut, onMachineChoice, onSearch, onDisk, onDiskOpen, hasBoard }) {
  const sessions = /** @type {import("../../state/sessions.js").Session[]} */ (listed.value);
  const agents = page.agents.value;
  const info = page.info.value;
  const connection = page.connection.value;
  const more = page.more.value + page.moreThere.value;
  const archivedShown = archived.value !== null;
  const [filter, setFilter] = useState("");
  const [rows, setRows] = useState(ROWS);
  const now = useNow(connection.phase === "away" ? 500 : 30000);
  const isLost = outageOf(connection, now) !== null;
  const machines = machinesOf(sessions, agents);
  const there = onMachine(sessions, machine.value, machines);
  const shown = filter.trim() === "" ? there : there.filter((session) => matches(session, filter.trim()));
  return html`<nav class="list" aria-label="Sessions">
    <header class="list-head">
      <h1>Sessions</h1>
      ${onNew && html`<button class="primary" onClick=${onNew}><${Icon} name="plus" />New</button>`}
    </header>
    ${(sessions.length >= FILTER_FROM || filter !== "") && html`<div class="filter">
      <${Icon} name="search" />
      <input type="search" dir="auto" placeholder="Filter" aria-label="Filter sessions" value=${filter} onInput=${(event) => setFilter(event.target.value)} />
    </div>`}
    <${MachineSwitch} machines=${machines} told=${info?.machines ?? []} choice=${machine.value} onChoice=${onMachineChoice} now=${now} />
    <div class="list-rows">
      ${firstOf(grouped(shown), rows).map((group) => html`<section key=${group.name} class=${classes("group", group.name === "Needs you" && "is-waiting")}>
        <h2>${group.name}</h2>
        <ul>${group.sessions.map((session) => html`<li key=${session.id}>
          <${SessionRow} session=${session} agents=${agents} isCurrent=${session.id === currentId} isBeside=${session.id === besideId} openBeside=${currentId !== null && session.id !== currentId && session.id !== besideId ? openBeside : null} now=${now} />
        </li>`)}</ul>
      </section>`)}
      ${shown.length > rows && html`<button class="quiet further" onClick=${() => setRows(rows + ROWS)}>
        Show ${Math.min(ROWS, shown.length - rows)} of ${shown.length - rows} more
      </button>`}
      ${shown.length <= rows && more > 0 && html`<p class="further muted">… and ${more} more, used longer ago</p>`}
      ${shown.length === 0 && html`<${Empty} filter=${filter} elsewhere=${sessions.length > there.length} onNew=${onNew} />`}
      <${TextSearch} words=${filter} search=${onSearch} sessions=${sessions} />
      <button class="quiet show-archived" aria-pressed=${String(archivedShown)} onClick=${() => onArchived(!archivedShown)}>
        <${Icon} name="archive" />${archivedShown ? "Hide archived sessions" : "Show archived sessions"}
      </button>
      ${onDisk && html`<${DiskSessions} agents=${agents} sessions=${sessions} words=${filter} request=${onDisk} open=${onDiskOpen} />`}
    </div>
    <footer class="list-foot">
      <span class="who" title=${info?.version ? `acp-gateway ${info.version}` : undefined}>
        ${info ? visible(info.identity) : ""} <span class="muted">${isLost ? "no connection" : "connected"}${info?.role === "observer" ? ", looks on" : ""}</span>
      </span>
      ${hasBoard && html`<a class="icon-button" href="#/board" aria-label="Board" title="Board"><${Icon} name="board" /></a>`}
      ${onLook && html`<button class="icon-button" aria-label="How busy the machine is" title="How busy the machine is" onClick=${onLook}><${Icon} name="load" /></button>`}
      ${onCosts && html`<button class="icon-button" aria-label="Costs" title="What sessions have cost" onClick=${onCosts}><${Icon} name="coins" /></button>`}
      ${onNotifications && html`<button class="icon-button" aria-label="Notifications" title="Notify me when a session needs me" onClick=${onNotifications}><${Icon} name="bell" /></button>`}
      <button class="icon-button" aria-label="Sign out" title="Sign out" onClick=${onSignOut}><${Icon} name="leave" /></button>
    </footer>
  </nav>`;
}

/** A row; there may be a thousand, and while an agent speaks none of them changes. */
class SessionRow extends Pure {
  render({ session, agents, isCurrent, isBeside, openBeside, now }) {
    const status = statusOf(session);
    const age = ageText(session.updatedAt ?? session.createdAt, now);
    return html`<a class=${classes("session", `is-${status.name}`)} href=${makeRoute({ sessionId: session.id })} aria-current=${isCurrent ? "page" : isBeside ? "true" : undefined}>
      <span class="session-title" dir="auto">${titleOf(session)}</span>
      <span class="session-facts"><${MachineBadge} ...${session} />${[age, visible(agentText(session, agents)), visible(session.workspace ?? "") || shortPath(session.cwd), spentText(session.usage)].filter(Boolean).join(" · ")}</span>
      ${status.name !== "past" && status.name !== "ready" && html`<span class="state">${status.text === "Needs you" ? "1 question" : status.text}</span>`}
    </a><${BesideButton} sessionId=${session.id} title=${titleOf(session)} open=${openBeside} />`;
  }
}

/** The groups with the first sessions of all, `count` together. */
function firstOf(groups, count) {
  let left = count;
  const first = [];
  for (const { name, sessions } of groups) {
    if (left > 0) first.push({ name, sessions: sessions.slice(0, left) });
    left -= sessions.length;
  }
  return first;
}

function Empty({ filter, elsewhere, onNew }) {
  if (filter) return html`<p class="empty">No session matches “${filter}”.</p>`;
  if (elsewhere) return html`<p class="empty">No sessions on this machine. Choose another one above.</p>`;
  return html`<p class="empty">No sessions yet. ${onNew ? "Start one here, or in an editor." : "They appear here when they begin."}</p>`;
}
