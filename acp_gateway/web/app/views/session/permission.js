/** The questions of the agent: a card above the composer, with the whole command or change and the agent's options. */
import { useLayoutEffect, useMemo, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { useCommand } from "../page/command_keys.js";
import { locationsOf, toolContentOf } from "../../updates/content.js";
import { Elicitation } from "./elicitation.js";
import { counted, oneLine, plain, sentence, visible } from "../../text/format.js";
import { Boundary, classes, useLabel } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { Markdown } from "../transcript/parts.js";
import { commandOf, toolTitle, ToolBody } from "../transcript/tool.js";

/** Time in ms after a decision in which keys decide nothing: they were meant for the question that was there before. */
const PAUSE = 400;

/** Height in pixels from which on something hidden counts. */
const HIDDEN = 4;

/** Longest title of a question, in characters; a longer one stands below, where it can scroll. */
const LONGEST_TITLE = 160;

/** The question that is shown, of all that wait. `open` has the signals of the session; `wanted` is the id of the one that the address names. */
export function Permission({ open, session, mayControl, wanted, respond, rulesFor }) {
  const pending = open.pending.value;
  const [chosen, setChosen] = useState(/** @type {any} */ (null));
  const card = useRef(/** @type {any} */ (null));
  const label = useLabel("The agent asks");
  const asked = chosen ?? wanted;
  const at = Math.max(0, pending.findIndex((request) => String(request.requestId) === String(asked)));
  const request = pending[at];
  const options = request && mayControl ? optionsOf(request) : [];
  const pauseKeys = usePause(request?.requestId);
  const answer = (response) => {
    pauseKeys();
    respond(request.requestId, response);
  };
  const decide = (option) => answer({ outcome: { outcome: "selected", optionId: option.optionId } });

  useFocusInside(card, request?.requestId);
  useCommand("decide", (event) => {
    const option = options[Number(event.key) - 1];
    if (!option || request.answering || pauseKeys.isOn()) return false;
    return decide(option);
  });

  if (!request) return null;
  const step = (by) => setChosen(pending[(at + by + pending.length) % pending.length].requestId);
  const params = request.params ?? {};
  const key = String(request.requestId);
  const strange = html`<h2>The agent asks something that can't be shown here.</h2><p>Answer it in an editor.</p>`;
  return html`<section class="permission" ref=${card} tabindex="-1" aria-label=${label}>
    <p class="hidden" role="alert">${announcement(request, pending.length)}</p>
    ${pending.length > 1 && html`<${Steps} at=${at} count=${pending.length} step=${step} />`}
    ${params.requestedSchema || params.mode === "url"
      ? html`<${Boundary} key=${key} fallback=${strange}><${Elicitation} params=${params} answer=${answer} mayAnswer=${mayControl} /></${Boundary}>`
      : html`<${Boundary} key=${key} fallback=${strange}>
          <${Question} request=${request} open=${open} cwd=${session.cwd} mayControl=${mayControl} options=${options} decide=${decide} />
          <${Always} request=${request} options=${options} rulesFor=${rulesFor} answer=${answer} />
        </${Boundary}>`}
  </section>`;
}

/** Returns a function that pauses keys after a decision; another question that takes the place of one pauses them too. */
function usePause(id) {
  const until = useRef(0);
  const shown = useRef(undefined);
  const pause = () => {
    until.current = performance.now() + PAUSE;
  };
  pause.isOn = () => performance.now() < until.current;
  useLayoutEffect(() => {
    if (shown.current !== undefined && id !== undefined && shown.current !== id) pause();
    shown.current = id;
  }, [id]);
  return pause;
}

/** Keep the focus in the card while its question changes, and give it to the transcript when the last one is gone. */
function useFocusInside(card, id) {
  const inside = useRef(false);
  const view = useRef(/** @type {any} */ (null));
  inside.current = Boolean(card.current?.contains(document.activeElement));
  useLayoutEffect(() => {
    view.current = card.current?.closest(".view") ?? view.current;
    if (!inside.current || document.activeElement !== document.body) return;
    (card.current ?? view.current.querySelector(".scroller"))?.focus({ preventScroll: true });
  }, [id]);
}

function Steps({ at, count, step }) {
  return html`<nav class="permission-steps" aria-label=${useLabel("Questions")}>
    <button class="icon-button" aria-label="Previous question" onClick=${() => step(-1)}><${Icon} name="back" /></button>
    <span>${at + 1} of ${count}</span>
    <button class="icon-button" aria-label="Next question" onClick=${() => step(1)}><${Icon} name="chevron" /></button>
  </nav>`;
}

function optionsOf(request) {
  const { options } = request.params ?? {};
  return Array.isArray(options) ? options.filter((option) => typeof option?.optionId === "string") : [];
}

/** What a screen reader says when a question comes. */
function announcement(request, count) {
  const tool = request.params?.toolCall;
  const more = count > 1 ? ` ${count} questions wait.` : "";
  if (!tool) return `The agent asks: ${visible(plain(request.params?.message))}.${more}`;
  const names = optionsOf(request).map((option, i) => `${i + 1} ${oneLine(option.name, 300)}`);
  return `The agent asks for permission: ${oneLine(toolTitle(tool), 300)}. ${names.join(", ")}.${more}`;
}

/** The tool call of a question: what the request says, and where it says nothing, what the transcript knows. */
export function toolOf(request, known = {}) {
  const asked = request.params?.toolCall ?? {};
  const content = toolContentOf(asked.content);
  const locations = locationsOf(asked.locations);
  return {
    title: plain(asked.title) || known.title,
    toolKind: plain(asked.kind) || known.toolKind,
    content: content.length > 0 ? content : known.content ?? [],
    locations: locations.length > 0 ? locations : known.locations ?? [],
    rawInput: commandOf(asked) === null && commandOf(known) !== null ? known.rawInput : asked.rawInput ?? known.rawInput,
    terminals: known.terminals,
  };
}

function Question({ request, open, cwd, mayControl, options, decide }) {
  const known = open.transcript.value.byTool.get(plain(request.params?.toolCall?.toolCallId));
  const tool = useMemo(() => toolOf(request, known), [request.params, known]);
  const title = toolTitle(tool);
  const isLong = title.length > LONGEST_TITLE;
  const isCommand = commandOf(tool)?.trim().replace(/\s+/g, " ") === title;
  return html`
    <header>
      <${Icon} name="alert" />
      <h2 dir="auto">${isCommand ? "Run this command?" : oneLine(title, LONGEST_TITLE)}</h2>
    </header>
    ${request.params?.message && html`<${Markdown} text=${plain(request.params.message)} />`}
    <${WithRest}>
      ${isLong && !isCommand && html`<p class="whole-title" dir="auto">${title}</p>`}
      <${ToolBody} tool=${tool} cwd=${cwd} whole=${true} />
    </${WithRest}>
    ${request.error && html`<p class="error" role="alert">${sentence(request.error)}</p>`}
    ${options.length > 0
      ? html`<div class="options">
          ${options.map((option, i) => html`<button
            class=${classes("option", `option-${optionClass(option)}`)}
            disabled=${request.answering}
            onClick=${() => decide(option)}
            aria-keyshortcuts=${i < 9 ? String(i + 1) : undefined}
          >
            ${i < 9 && html`<kbd aria-hidden="true">${i + 1}</kbd>`}<span dir="auto">${visible(option.name)}</span>
          </button>`)}
        </div>`
      : html`<p class="muted">${!mayControl ? "Someone who controls this session has to decide." : "Answer this in an editor: the page does not know this kind of question."}</p>`}
  `;
}

/** Has a rule written for such questions: it is shown in full before, and allows this one as well. */
function Always({ request, options, rulesFor, answer }) {
  const [offered, setOffered] = useState(/** @type {any} */ (null));
  const [chosen, setChosen] = useState(0);
  const once = options.filter((option) => option.kind === "allow_once");
  if (once.length !== 1 || !request.params?.toolCall) return null;
  const ask = () => rulesFor(request.requestId).then(setOffered, (error) => setOffered({ rules: [], error: error.message }));
  if (offered === null) return html`<button class="quiet always" disabled=${request.answering} onClick=${ask}>Always…</button>`;
  const rules = offered.rules.flatMap((subject) => [
    { subject, for: "project", where: `in ${visible(plain(offered.project))}` },
    { subject, for: "session", where: "in this session" },
  ]);
  if (rules.length === 0) return html`<p class="muted">${offered.error ? sentence(offered.error) : "No rule can be written for this: a person has to read it each time."}</p>`;
  const { subject, for: scope } = rules[chosen];
  const outcome = { outcome: "selected", optionId: once[0].optionId };
  const write = () => answer({ outcome, _meta: { "acp-gateway": { rule: { subject, for: scope } } } });
  return html`<fieldset class="always">
    <legend>From now on, allow without asking</legend>
    ${rules.map((rule, i) => html`<label>
      <input type="radio" name="rule" checked=${i === chosen} onChange=${() => setChosen(i)} />
      <span dir="auto">${visible(rule.subject)} ${rule.where}</span>
    </label>`)}
    <button disabled=${request.answering} onClick=${write}>Allow, and write this rule</button>
    <button class="quiet" onClick=${() => setOffered(null)}>Cancel</button>
  </fieldset>`;
}

/** What a question is about. What does not fit scrolls, and a button counts the lines that are hidden below. */
function WithRest({ children }) {
  const body = useRef(/** @type {any} */ (null));
  const [left, setLeft] = useState(0);
  const look = () => setLeft(linesBelow(body.current));
  useLayoutEffect(() => {
    const observer = new ResizeObserver(look);
    for (const node of [body.current, ...body.current.children]) observer.observe(node);
    look();
    return () => observer.disconnect();
  }, [children]);
  const onward = () => body.current.scrollBy({ top: body.current.clientHeight * 0.8 });
  return html`
    <div class=${classes("permission-body", left > 0 && "has-more")} ref=${body} onScroll=${look} tabindex="0" role="group" aria-label="What it is about">
      ${children}
    </div>
    ${left > 0 && html`<button class="quiet rest" onClick=${onward}><${Icon} name="down" />${counted(left, "more line")} below</button>`}
  `;
}

/** Lines below what is seen of a scrolling element: rows of tables by number, other text by its height. */
function linesBelow(body) {
  const hidden = body.scrollHeight - body.clientHeight - body.scrollTop;
  if (hidden < HIDDEN) return 0;
  const edge = body.getBoundingClientRect().bottom;
  const rows = [...body.querySelectorAll("tr")].filter((row) => row.getBoundingClientRect().bottom > edge + 1);
  return rows.length || Math.ceil(hidden / (parseFloat(getComputedStyle(body).lineHeight) || 20));
}

function optionClass(option) {
  if (/^reject/.test(option.kind)) return "reject";
  return option.kind === "allow_once" ? "allow" : "other";
}
