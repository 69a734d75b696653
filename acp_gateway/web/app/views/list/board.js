/** The board: all sessions in columns by state, with the last line of each. For wide windows. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { columnsOf } from "../../state/board_columns.js";
import { spentText } from "../../text/costs.js";
import { ageText, counted, oneLine, shortPath, titleOf, visible } from "../../text/format.js";
import { classes, Pure, useNow } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { MachineBadge } from "./machine_switch.js";
import { agentText } from "../../state/machines.js";
import { BesideButton } from "../session/panes_view.js";
import { makeRoute } from "../../route/route.js";
import { statusOf } from "../../text/words.js";

/** Cards of a column that are drawn at first, and with each further click. */
const CARDS = 25;

/** Sessions whose lines the gateway tells at once. */
const MOST_LINES = 100;

/** Time in ms between two looks at the last lines. */
const LOOK = 3000;

/** Longest last line that is drawn, in characters. */
const LONGEST = 200;

/** `page` and `here` are signals: of the page, and of the sessions to show; `top` stands above them. */
export function Board({ page, here, top, lastLines, openBeside, onNew }) {
  const agents = page.agents.value;
  const [counts, setCounts] = useState({});
  const now = useNow(30000);
  const columns = columnsOf(here.value).map((column) => ({ ...column, shown: column.sessions.slice(0, counts[column.name] ?? CARDS) }));
  const lines = useLastLines(columns.flatMap((column) => column.shown), page.phase.value === "connected", lastLines);
  return html`<main class="view board" aria-label="Board">
    <header class="head">
      <div class="head-text"><h1>Board</h1><p class="head-facts">${counted(columns.reduce((sum, column) => sum + column.sessions.length, 0), "session")}</p></div>
      ${onNew && html`<button class="primary" onClick=${onNew}><${Icon} name="plus" />New</button>`}
      <a class="secondary" href="#/">List</a>
    </header>
    ${top}
    <div class="columns">
      ${columns.map(({ name, title, sessions: all, shown }) => html`<section key=${name} class=${classes("column", name === "waiting" && all.length > 0 && "is-waiting")}>
        <h2>${title} <span class="muted">${all.length}</span></h2>
        <div class="column-cards" tabindex="0" role="region" aria-label=${title}>
          <ul>${shown.map((session) => html`<li key=${session.id}>
            <${Card} session=${session} agents=${agents} line=${lines[session.id] ?? ""} openBeside=${openBeside} now=${now} />
          </li>`)}</ul>
          ${all.length > shown.length && html`<button class="quiet further" onClick=${() => setCounts({ ...counts, [name]: shown.length + CARDS })}>
            Show ${Math.min(CARDS, all.length - shown.length)} of ${all.length - shown.length} more
          </button>`}
        </div>
      </section>`)}
    </div>
  </main>`;
}

/** The last line of each of these sessions, by id: asked for again and again, of live ones, while the page is seen. */
function useLastLines(sessions, isConnected, lastLines) {
  const [lines, setLines] = useState({});
  const asked = [...sessions.filter(({ live }) => live), ...sessions.filter(({ live }) => !live)].slice(0, MOST_LINES);
  const ids = asked.map(({ id }) => id);
  const liveIds = asked.filter(({ live }) => live).map(({ id }) => id);
  useEffect(() => {
    if (!isConnected || ids.length === 0) return undefined;
    let isOver = false;
    const look = (some) => {
      if (document.hidden || some.length === 0) return;
      // What was there before stays where this fails.
      lastLines(some).then((answer) => !isOver && setLines((lines) => ({ ...lines, ...answer.lines })), () => {});
    };
    look(ids);
    const timer = setInterval(() => look(liveIds), LOOK);
    return () => {
      isOver = true;
      clearInterval(timer);
    };
    // In another order they are the same.
  }, [isConnected, [...ids].sort().join(" "), [...liveIds].sort().join(" ")]);
  return lines;
}

class Card extends Pure {
  render({ session, agents, line, openBeside, now }) {
    const status = statusOf(session);
    const asked = session.waiting?.[0]?.title;
    const facts = [ageText(session.updatedAt ?? session.createdAt, now), visible(agentText(session, agents)), visible(session.workspace ?? "") || shortPath(session.cwd), spentText(session.usage)];
    return html`<a class=${classes("card", `is-${status.name}`)} href=${makeRoute({ sessionId: session.id })}>
      <span class="session-title" dir="auto">${titleOf(session)}</span>
      <span class="card-line" dir="auto">${oneLine(asked || line, LONGEST)}</span>
      <span class="session-facts"><${MachineBadge} ...${session} />${facts.filter(Boolean).join(" · ")}</span>
      ${!["waiting", "running", "ready", "past"].includes(status.name) && html`<span class="state">${status.text}</span>`}
    </a><${BesideButton} sessionId=${session.id} title=${titleOf(session)} open=${openBeside} />`;
  }
}
