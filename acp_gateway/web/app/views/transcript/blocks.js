/** Shows the blocks of a transcript: what people and the agent said, thoughts, plans, notes. Tool calls are in tool.js. */
import { html } from "../parts/html.js";
import { runOf } from "../page/command_keys.js";
import { CopyButton } from "../parts/copying.js";
import { oneLine, plain, visible } from "../../text/format.js";
import { useLabel } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { Part, Parts } from "./parts.js";
import { Tool } from "./tool.js";
import { endText } from "../../updates/turn_ends.js";
import { saidText } from "../../text/words.js";

/** Lines and characters from which on a prompt is folded, and how many are shown of it then. */
const MOST_LINES = 30;
const SHOWN_LINES = 12;
const MOST_CHARACTERS = 4000;
const SHOWN_CHARACTERS = 1000;

/** One block, by its kind. `folds` and `toggle` hold what the user has unfolded. */
export function Block({ block, folds, toggle, cwd, live }) {
  const shared = { block, folds, toggle, cwd, live };
  if (block.kind === "tool") return html`<${Tool} ...${shared} />`;
  if (block.kind === "user") return html`<${User} ...${shared} />`;
  if (block.kind === "thought") return html`<${Thought} ...${shared} />`;
  if (block.kind === "plan") return html`<${Plan} entries=${block.entries} name=${block.name} removed=${block.removed} />`;
  if (block.kind === "note") return html`<${Note} block=${block} />`;
  if (block.kind === "end") return html`<${End} end=${block.end} />`;
  return html`<article class=${`agent ${block.sub ? "is-sub" : ""}`} aria-label=${block.sub ? "Sub-agent" : "Agent"}>
    <${Parts} parts=${block.parts} />
  </article>
  ${!live && html`<${Said} block=${block} what="answer" />`}`;
}

/** When a message was said, and buttons: one copies it, one puts a prompt into the composer, if there is one. */
function Said({ block, what }) {
  const text = block.parts.map((part) => (part.type === "text" ? visible(part.text) : "")).join("");
  const time = saidText(block.at, Date.now());
  return html`<footer class=${`said is-${block.kind}`}>
    ${time !== null && html`<time datetime=${new Date(block.at).toISOString()} title=${new Date(block.at).toLocaleString()}>${time}</time>`}
    ${text !== "" && html`<${CopyButton} what=${what} text=${text} />`}
    ${text !== "" && block.kind === "user" && html`<button class="copy edit" aria-label="Edit and send again" title="Edit and send again"
      onClick=${() => runOf("edit")?.(block.parts.map((part) => part.text ?? "").join(""))}><${Icon} name="edit" /></button>`}
  </footer>`;
}

function User({ block, folds, toggle }) {
  const isLong = block.parts.some((part) => part.type === "text" && shortened(part.text) !== part.text);
  const open = !isLong || (folds.get(block.key) ?? false);
  return html`<article class="user" dir="auto" aria-label="Prompt">
    ${block.parts.map((part) =>
      part.type === "text" ? html`<span>${visible(open ? part.text : shortened(part.text))}</span>` : html`<${Part} part=${part} />`,
    )}
    ${isLong && html`<button class="quiet" aria-expanded=${String(open)} onClick=${() => toggle(block.key, !open)}>${open ? "Show less" : "Show all"}</button>`}
  </article>
  <${Said} block=${block} what="prompt" />`;
}

/** The beginning of a text that is very long, such as a log that was pasted. */
function shortened(text) {
  const lines = text.split("\n", MOST_LINES + 1);
  const end = lines.length > MOST_LINES ? lines.slice(0, SHOWN_LINES).join("\n").length : text.length;
  return end < text.length || text.length > MOST_CHARACTERS ? `${text.slice(0, Math.min(end, SHOWN_CHARACTERS))}…` : text;
}

function Thought({ block, folds, toggle, live }) {
  const open = folds.get(block.key) ?? false;
  const text = block.parts.map((part) => part.text ?? "").join("");
  return html`<div class="thought">
    <button class="fold" aria-expanded=${String(open)} onClick=${() => toggle(block.key, !open)}>
      <${Icon} name="think" />
      <span class="fold-title">${live ? "Thinking…" : "Thought"}</span>
      ${!open && html`<span class="fold-hint" dir="auto">${firstLine(text)}</span>`}
      <${Icon} name="chevron" />
    </button>
    ${open && html`<div class="thought-text"><${Parts} parts=${block.parts} /></div>`}
  </div>`;
}

function firstLine(text) {
  return visible(text.replace(/[*_`#]/g, "").trim().split("\n", 1)[0].slice(0, 160));
}

/** A plan of the agent, with its progress; one that was removed by its name alone. */
export function Plan({ entries = [], name = "", removed = false }) {
  const title = name ? `Plan ${oneLine(name, 60)}` : "Plan";
  const label = useLabel(title);
  if (removed) return html`<p class="note"><${Icon} name="plan" />${title} <span class="muted">was removed</span></p>`;
  const done = entries.filter((entry) => entry.status === "completed").length;
  return html`<section class="plan" aria-label=${label}>
    <header>
      <${Icon} name="plan" /><strong>${title}</strong>
      <span class="muted">${done} of ${entries.length}</span>
      <progress max=${entries.length} value=${done} aria-label="Steps done"></progress>
    </header>
    <${PlanSteps} entries=${entries} />
  </section>`;
}

/** Icon and words for states of a step; any other one is still to do. */
const STEPS = new Map([
  ["completed", { name: "completed", icon: "check", text: "done: " }],
  ["in_progress", { name: "in_progress", icon: "move", text: "under way: " }],
]);
const TO_DO = { name: "pending", icon: "circle", text: "to do: " };

function PlanSteps({ entries, scrolls = false }) {
  return html`<ol tabindex=${scrolls ? 0 : undefined} aria-label=${scrolls ? "Steps" : undefined}>
    ${entries.map((entry) => {
      const step = STEPS.get(entry.status) ?? TO_DO;
      return html`<li class=${`plan-${step.name}`}>
        <${Icon} name=${step.icon} /><span class="hidden">${step.text}</span><span dir="auto">${visible(entry.content)}</span>
      </li>`;
    })}
  </ol>`;
}

/** A notice, a sub-agent that was started, or updates of a kind that the page does not know. */
function Note({ block }) {
  if (block.note === "notice") {
    const isBad = block.severity === "error" || block.severity === "warning";
    const text = [block.title, block.description].filter(Boolean).join(": ") || "A notice";
    return html`<p class="note"><${Icon} name=${isBad ? "alert" : "bell"} /><span dir="auto">${isBad && html`<span class="hidden">${block.severity}: </span>`}${visible(text)}</span></p>`;
  }
  if (block.note === "subagent") {
    const text = [block.title || "Sub-agent", block.description].filter(Boolean).join(": ");
    const state = plain(block.state?.status ?? block.state?.type);
    return html`<p class="note"><${Icon} name="move" /><span dir="auto">${oneLine(text, 300)}</span> ${state && html`<span class="muted">${oneLine(state, 40)}</span>`}</p>`;
  }
  return html`<details class="note">
    <summary>${block.count > 1 ? `${block.count} updates` : "An update"} of the kind ${oneLine(block.updateType, 80)}</summary>
    <pre class="code-text" tabindex="0">${visible(JSON.stringify(block.payloads, null, 2))}</pre>
  </details>`;
}

/** How a turn has ended, if it was not done. */
function End({ end }) {
  const time = saidText(end.at, Date.now());
  const isError = end.error !== null;
  return html`<p class=${`turn-end ${isError ? "is-error" : ""}`} dir="auto">
    ${isError && html`<${Icon} name="alert" />`}<span>${visible(endText(end))}${time !== null && html` <time class="muted" datetime=${new Date(end.at).toISOString()} title=${new Date(end.at).toLocaleString()}>${time}</time>`}</span>
  </p>`;
}

/** Each plan in one line, while it is under way. */
export function PlanLines({ plans }) {
  const known = (plans ?? []).filter(({ entries }) => entries);
  return known.map(({ id, entries }) => html`<${PlanLine} key=${id} name=${known.length > 1 ? id : ""} entries=${entries} />`);
}

/** A plan in one line; unfolds to all of it. */
function PlanLine({ name, entries }) {
  if (!entries || entries.length === 0 || entries.every((entry) => entry.status === "completed")) return null;
  const now = entries.find((entry) => entry.status === "in_progress") ?? entries.find((entry) => entry.status !== "completed");
  const done = entries.filter((entry) => entry.status === "completed").length;
  return html`<details class="plan-line">
    <summary>
      <${Icon} name="plan" />${name && html`<span class="muted">${oneLine(name, 40)}</span>`}<span class="muted">${done} of ${entries.length}</span><span class="plan-now" dir="auto">${oneLine(now.content, 200)}</span>
      <progress max=${entries.length} value=${done} aria-label="Steps done"></progress><${Icon} name="chevron" />
    </summary>
    <${PlanSteps} entries=${entries} scrolls=${true} />
  </details>`;
}
