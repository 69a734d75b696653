/** A tool call: a row with its kind, title, status and places, which unfolds to what it did. */
import { useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { lineIn } from "../../updates/changes.js";
import { Copyable } from "../parts/copying.js";
import { useComparisons } from "../../code/comparisons.js";
import { ChangeView, Counts, DiffView } from "./diff_view.js";
import { counted, oneLine, plain, shortPath, valueOf, visible } from "../../text/format.js";
import { classes, Pure } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { Markdown, Parts, Terminal } from "./parts.js";
import { FileLink, Pictures } from "../files/file_link.js";
import { EditorLink } from "./reading.js";
import { exitWords, tookText } from "../../text/words.js";

/** Words for states of a tool call; any other word of an agent is shown as it is, and gives no style. */
const STATUS = new Map([["pending", "waits"], ["in_progress", "runs"], ["completed", "done"], ["failed", "failed"]]);

/** Longest title in a row, in characters. */
const LONGEST_TITLE = 1000;

/** Lines, and characters, of the output of a running terminal that are shown below a folded row: what it does now. */
const RUNNING_LINES = 5;
const MOST_RUNNING = 2000;

/** Characters of a text that are shown at first; a button shows the rest. */
const FIRST_CHARACTERS = 20000;

/** The row. Folded, unless the user unfolded it. */
export function Tool({ block, folds, toggle, cwd }) {
  const open = folds.get(block.key) ?? false;
  const places = block.locations ?? [];
  const title = toolTitle(block);
  const place = places.find(({ path }) => !title.includes(shortPath(path, cwd)));
  const took = tookText(block);
  return html`<section class=${classes("tool", STATUS.has(block.status) && `is-${block.status}`, block.sub && "is-sub")}>
    <button class="fold" aria-expanded=${String(open)} onClick=${() => toggle(block.key, !open)}>
      <${Icon} name=${block.toolKind ?? "other"} />
      <span class=${classes("fold-title", block.toolKind === "execute" && "is-code")} dir="auto">${oneLine(title, LONGEST_TITLE)}</span>
      <${SumOfCounts} content=${block.content ?? []} />
      ${place && html`<span class="fold-hint">${placeText(place, cwd)}${places.length > 1 && ` and ${places.length - 1} more`}</span>`}
      ${took && html`<span class="took"><span class="hidden">took </span>${took}</span>`}
      <span class="status">${block.status === "completed" ? html`<span class="hidden">done</span>` : STATUS.get(block.status) ?? oneLine(block.status, 30)}</span>
      <${Icon} name="chevron" />
    </button>
    ${open ? html`<div class="tool-body"><${ToolBody} tool=${block} cwd=${cwd} /></div>` : html`<${Running} tool=${block} />`}
    <${Pictures} tool=${block} />
  </section>`;
}

/** The last lines of terminals, while a tool call runs. */
function Running({ tool }) {
  if (tool.status !== "in_progress" && tool.status !== "pending") return null;
  const text = Object.values(tool.terminals ?? {}).map(({ output }) => output).join("\n").slice(-MOST_RUNNING);
  const lines = text.trimEnd().split("\n").slice(-RUNNING_LINES).join("\n");
  return lines && html`<div class="tool-running"><${Terminal} text=${lines} label="Last lines of the output" /></div>`;
}

function placeText({ path, line }, cwd) {
  return shortPath(path, cwd) + (line ? `:${line}` : "");
}

/** A tool call's title in one line, without the backticks that some agents put around it. */
export function toolTitle(tool) {
  const title = plain(tool.title).trim().replace(/^`([^`]*)`$/, "$1");
  return visible(title).replace(/\s+/g, " ") || visible(tool.toolKind ?? "Tool");
}

/** The lines that changes add and delete together; nothing for no changes. */
export function SumOfCounts({ content }) {
  const known = useComparisons(content.filter((entry) => entry.type === "diff")).map(({ counts }) => counts);
  if (known.length === 0 || known.includes(null)) return null;
  const sum = (name) => known.reduce((total, counts) => total + counts[name], 0);
  return html`<${Counts} counts=${{ added: sum("added"), deleted: sum("deleted") }} />`;
}

/** The command that a tool call runs, or null. */
export function commandOf(tool) {
  const command = tool.rawInput?.command ?? tool.rawInput?.cmd;
  if (Array.isArray(command)) return command.map(plain).join(" ");
  return typeof command === "string" ? command : null;
}

/** All that is known of a tool call. `whole` cuts nothing and unfolds all, for a decision. */
export class ToolBody extends Pure {
  render({ tool, cwd, whole = false }) {
    const command = commandOf(tool);
    const content = withTerminals(tool);
    const output = content.length === 0 ? outputOf(tool.rawOutput) : null;
    const shows = command !== null || content.length > 0 || output !== null;
    const places = tool.locations ?? [];
    if (!shows && places.length < 2 && isEmpty(tool.rawInput) && isEmpty(tool.rawOutput)) return html`<p class="muted">The agent says no more about this.</p>`;
    return html`
      ${command !== null && html`<${Command} command=${command} rawInput=${tool.rawInput} cwd=${cwd} />`}
      ${content.map((entry, i) => html`<${Content} key=${i} entry=${entry} tool=${tool} cwd=${cwd} whole=${whole} />`)}
      ${output !== null && html`<${Long} text=${output} whole=${whole} show=${(text) => html`<${Terminal} text=${text} />`} />`}
      ${places.length > 1 && html`<${Places} locations=${places} cwd=${cwd} />`}
      ${!isShown(tool.rawInput, command) && html`<${Raw} name="Input" value=${tool.rawInput} open=${whole && !shows} />`}
      ${output !== tool.rawOutput && html`<${Raw} name="Output" value=${tool.rawOutput} />`}
    `;
  }
}

/** The content, with the terminals that it does not refer to. */
function withTerminals({ content = [], terminals = {} }) {
  const shown = new Set(content.map(({ terminalId }) => terminalId));
  const others = Object.keys(terminals).filter((terminalId) => !shown.has(terminalId));
  return others.length === 0 ? content : [...content, ...others.map((terminalId) => ({ type: "terminal", terminalId }))];
}

/** Whether the command and what stands around it is all of the input. */
function isShown(rawInput, command) {
  return command !== null && Object.keys(rawInput).every((name) => /^(command|cmd|description|cwd|workdir)$/.test(name));
}

function Command({ command, rawInput, cwd }) {
  const folder = plain(rawInput?.cwd ?? rawInput?.workdir);
  const reason = plain(rawInput?.description);
  return html`<div class="command">
    ${reason && html`<p class="command-reason" dir="auto">${visible(reason)}</p>`}
    <${Copyable} what="command"><pre class="command-text" tabindex="0" role="group" aria-label="Command">${visible(command)}</pre></${Copyable}>
    ${folder && folder !== cwd && html`<p class="muted">in ${visible(folder)}</p>`}
  </div>`;
}

function Content({ entry, tool, cwd, whole }) {
  if (entry.type === "diff") return html`<${DiffView} content=${entry} cwd=${cwd} whole=${whole} line=${lineIn(tool, entry.path)} />`;
  if (entry.type === "change") return html`<${ChangeView} change=${entry.change} cwd=${cwd} />`;
  if (entry.type === "terminal") return html`<${TerminalContent} terminal=${valueOf(tool.terminals, entry.terminalId)} whole=${whole} />`;
  if (entry.type !== "content") return html`<${Raw} name=${entry.type} value=${entry.raw ?? entry.sessionId} />`;
  const { part } = entry;
  if (part.type !== "text") return html`<${Parts} parts=${[part]} />`;
  const isOutput = tool.toolKind === "execute" || part.text.includes("\u001b[");
  const Show = isOutput ? Terminal : Markdown;
  return html`<${Long} text=${isOutput ? withoutFence(part.text) : part.text} whole=${whole} show=${(text) => html`<${Show} text=${text} />`} />`;
}

function TerminalContent({ terminal, whole }) {
  if (!terminal) return html`<p class="muted">The output is in the terminal of another program.</p>`;
  const { output } = terminal;
  const end = exitWords(terminal);
  return html`
    <${Long} text=${output} whole=${whole} show=${(text) => html`<${Terminal} text=${text} />`} />
    ${end && html`<p class="muted">${end}</p>`}
  `;
}

/** The text without a code fence around all of it, which some agents put around output. */
function withoutFence(text) {
  const match = /^\s*(`{3,})[^\n]*\n([^]*?)\n?\1\s*$/.exec(text);
  return match ? match[2] : text;
}

/** A text with a button for the rest of it. */
function Long({ text, show, whole }) {
  const [all, setAll] = useState(whole);
  if (all || text.length <= FIRST_CHARACTERS) return show(text);
  return html`
    ${show(text.slice(0, FIRST_CHARACTERS))}
    <button class="quiet" onClick=${() => setAll(true)}>Show all ${counted(text.split("\n").length, "line")}</button>
  `;
}

/** The text in a raw output, as agents commonly wrap it, or null. */
function outputOf(raw) {
  if (typeof raw === "string") return raw;
  for (const name of ["output", "stdout", "text", "content"]) if (typeof raw?.[name] === "string") return raw[name];
  return null;
}

function Places({ locations, cwd }) {
  return html`<ul class="places">
    ${locations.map((location) => html`<li><${FileLink} ...${location}>${placeText(location, cwd)}</${FileLink}><${EditorLink} ...${location} /></li>`)}
  </ul>`;
}

function isEmpty(value) {
  return value === undefined || value === null || (typeof value === "object" && Object.keys(value).length === 0);
}

function Raw({ name, value, open = false }) {
  if (isEmpty(value)) return null;
  return html`<details class="raw" open=${open}>
    <summary>${name}</summary>
    ${isFlat(value)
      ? html`<dl class="members">${Object.entries(value).map(([key, member]) => html`<dt dir="auto">${visible(key)}</dt><dd dir="auto">${visible(String(member))}</dd>`)}</dl>`
      : html`<pre class="code-text" tabindex="0">${visible(typeof value === "string" ? value : JSON.stringify(value, null, 2))}</pre>`}
  </details>`;
}

/** Whether a value is an object whose members each fit into a line or some. */
function isFlat(value) {
  return typeof value === "object" && !Array.isArray(value) && Object.values(value).every((member) => typeof member !== "object");
}
