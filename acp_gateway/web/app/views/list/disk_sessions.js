/** Sessions that only agents have on their disks: the agents are asked when a person wants to see them. */
import { useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { ageText, sentence, shortPath, titleOf, visible } from "../../text/format.js";
import { useNow } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { agentText } from "../../state/machines.js";
import { makeRoute } from "../../route/route.js";
import { matches } from "../../text/words.js";

/** Rows that are drawn at most: a filter finds the others. */
const ROWS = 300;

/**
 * `request` gets the name of an agent and a cursor, and returns a page; `open` opens the session of an id and an agent;
 * `sessions` are in the list already.
 */
export function DiskSessions({ agents, sessions, words, request, open }) {
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const isBusy = useRef(false);
  const now = useNow(30000);
  const ask = async (from, before) => {
    if (isBusy.current) return;
    isBusy.current = true;
    setBusy(true);
    /** @type {{found: any[], cursors: any[], errors: any[]}} */
    const next = { found: [...before.found], cursors: [], errors: [] };
    for (const [name, cursor] of from) {
      try {
        const page = await request(name, cursor);
        next.found.push(...page.sessions);
        if (page.nextCursor) next.cursors.push([name, page.nextCursor]);
      } catch (error) {
        next.errors.push([name, error.message]);
        next.cursors.push([name, cursor]);
      }
    }
    isBusy.current = false;
    setBusy(false);
    setAnswer(next);
  };
  const own = agents.filter(({ machine }) => !machine);
  if (own.length === 0) return null;
  if (answer === null)
    return html`<button class="quiet show-archived" disabled=${busy} onClick=${() => ask(own.map(({ name }) => [name]), { found: [] })}>
      <${Icon} name="search" />${busy ? "Asking the agents…" : "Show sessions on disk"}
    </button>`;
  const known = new Set(sessions.map(({ id }) => id));
  const found = new Map(answer.found.filter(({ id }) => !known.has(id)).map((one) => [keyOf(one), one]));
  const show = async (/** @type {Event} */ event, /** @type {any} */ one) => {
    if ([...found.values()].filter(({ id }) => id === one.id).length === 1) return;
    event.preventDefault();
    try {
      await open(one.id, one.agentType);
      location.hash = makeRoute({ sessionId: one.id });
    } catch (error) {
      setAnswer({ ...answer, errors: [[one.agentType, error.message]] });
    }
  };
  const shown = [...found.values()].filter((one) => words.trim() === "" || matches(one, words.trim()));
  return html`<section class="group">
    <h2>On disk</h2>
    ${answer.errors.map(([name, why]) => html`<p class="empty" key=${name}>${visible(name)}: ${sentence(why)}</p>`)}
    ${shown.length === 0 && answer.errors.length === 0 && html`<p class="empty">No other sessions.</p>`}
    <ul>${shown.slice(0, ROWS).map((one) => html`<li key=${keyOf(one)}>
      <a class="session is-past" href=${makeRoute({ sessionId: one.id })} onClick=${(/** @type {Event} */ event) => show(event, one)}>
        <span class="session-title" dir="auto">${titleOf(one)}</span>
        <span class="session-facts">${[ageText(one.updatedAt, now), visible(agentText(one, agents)), shortPath(one.cwd)].filter(Boolean).join(" · ")}</span>
      </a>
    </li>`)}</ul>
    ${shown.length > ROWS && html`<p class="further muted">… and ${shown.length - ROWS} more: use the filter</p>`}
    ${answer.cursors.length > 0 && html`<button class="quiet further" disabled=${busy} onClick=${() => ask(answer.cursors, answer)}>
      ${busy ? "Asking the agents…" : answer.cursors.length > answer.errors.length ? "Show more of them" : "Try again"}
    </button>`}
  </section>`;
}

/** Agents may have sessions of one id. @param {any} one */
const keyOf = ({ agentType, id }) => `${agentType} ${id}`;
