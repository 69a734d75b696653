/** All that a session has changed, by file, and the reader's remarks on it, which become one prompt. */
import { useLayoutEffect, useMemo, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { changesOf, lineOf, linesBetween, placeText, remarksOf, reviewPrompt, rowOfRemark } from "../../updates/changes.js";
import { ChangeView, DiffView } from "./diff_view.js";
import { Undo, useDisk } from "./disk_changes.js";
import { filesOf, hunksOf, notesOf, turnsOf } from "../../updates/disk_changes.js";
import { counted, oneLine, sentence, shortPath } from "../../text/format.js";
import { useLabel, useMayFocus } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { keep, read, storageOf } from "../../state/kept.js";
import { isComposing } from "../parts/keys.js";
import { EditorChoice, jump } from "./reading.js";
import { makeRoute } from "../../route/route.js";
import { SumOfCounts } from "./tool.js";

/** Files whose changes are shown at first, and changes of one file; a button shows more. */
const FIRST_FILES = 50;
const FIRST_EDITS = 20;

const ofTab = storageOf(() => sessionStorage);

/** The choices of what the agent tells, beside those of the disk: "disk", or "disk" with the number of a turn. */
const TOLD = "told";
const TOLD_TURN = "told turn";

/**
 * The view. `open` has the signals of the session; `send` takes the prompt, or is null for an observer, who remarks nothing; `ask` and
 * `undo` are for the disk, which an observer does not see; nor does a guest who may not use files, with `ask` null.
 */
export function Changes({ sessionId, open, onLoadOlder, cwd, send, ask, undo }) {
  const transcript = open.transcript.value;
  const [choice, setChoice] = useState("disk");
  const mark = /^disk \d+$/.test(choice) ? Number(choice.slice(5)) : null;
  const disk = useDisk(send && ask, mark, open.end.value);
  const told = choice.startsWith("disk") ? disk.told : null;
  const lastTurn = choice === TOLD_TURN;
  const [most, setMost] = useState(FIRST_FILES);
  const said = useMemo(() => changesOf(transcript.blocks, { lastTurn }), [transcript.version, lastTurn]);
  const onDisk = useMemo(() => (told === null ? null : filesOf(told)), [told]);
  const files = onDisk ?? said;
  // Who has made a change is known only where the whole conversation is.
  const named = onDisk === null || open.older.value !== "none" ? null : new Set(said.map(({ path }) => path));
  const undoing = told?.present ? { change: (file, lines) => undo({ mark, path: file.path, old: file.old, new: file.new, lines }).then(disk.again) } : null;
  const review = useRemarks(sessionId);
  const root = useRef(/** @type {any} */ (null));
  const mayFocus = useMayFocus();
  useLayoutEffect(() => void (mayFocus() && root.current.focus({ preventScroll: true })), []);
  const written = review.remarks.filter(({ text }) => text.trim() !== "");
  const shown = files.slice(0, most);
  const paths = new Set(shown.map(({ path }) => path));
  const lost = review.remarks.filter(({ path }) => !paths.has(path));
  const discard = () => {
    root.current.focus({ preventScroll: true });
    review.clear();
  };
  const sendAll = () => {
    send([{ type: "text", text: reviewPrompt(written, cwd) }]);
    review.clear();
    location.hash = makeRoute({ sessionId });
  };
  return html`<section class="changes" aria-label=${useLabel("Changes")}>
    <header class="changes-head">
      <h2>Changes</h2>
      <${Choice} turns=${disk.told && turnsOf(disk.told.marks)} value=${disk.told ? choice : lastTurn ? TOLD_TURN : TOLD} onChoice=${setChoice} />
      <span class="muted">${counted(files.length, "file")}</span>
      <${EditorChoice} />
      <button class="icon-button" aria-label="Previous change" title="Previous change" onClick=${() => jump(root.current, -1)}><${Icon} name="up" /></button>
      <button class="icon-button" aria-label="Next change" title="Next change" onClick=${() => jump(root.current, 1)}><${Icon} name="down" /></button>
      <a class="icon-button" href=${makeRoute({ sessionId })} aria-label="Back to the conversation" title="Back to the conversation"><${Icon} name="close" /></a>
    </header>
    <div class="changes-body" ref=${root} tabindex="0" role="group" aria-label="Changed files">
      ${onDisk === null && html`<${Missing} older=${lastTurn ? "none" : open.older.value} onLoadOlder=${onLoadOlder} />`}
      ${disk.why !== null && html`<p class="note" role="status">${sentence(disk.why)} What is shown is what the agent has told.</p>`}
      ${told?.why && html`<p class="note" role="status">${sentence(told.why)}</p>`}
      ${told !== null && notesOf(told).length > 0 && html`<ul class="disk-notes" aria-label="Commits and worktrees">${notesOf(told).map((note) => html`<li key=${note} dir="auto">${note}</li>`)}</ul>`}
      ${files.length === 0 && html`<p class="message">${onDisk !== null ? "Nothing has changed on the disk." : `The agent has told of no changed file${lastTurn ? " since the last prompt" : ""}.`}</p>`}
      ${files.length > 1 && html`<${FileList} files=${shown} cwd=${cwd} root=${root} />`}
      <${Elsewhere} remarks=${lost} review=${review} cwd=${cwd} />
      ${shown.map((file) => html`<${File} key=${file.path} file=${file} cwd=${cwd} review=${send ? review : null} undoing=${undoing} byCommand=${named !== null && !named.has(file.path)} />`)}
      ${told !== null && told.more > 0 && html`<p class="note">${counted(told.more, "further file")} changed.</p>`}
      ${files.length > most && html`<button class="quiet" onClick=${() => setMost(most + FIRST_FILES)}>Show more files</button>`}
    </div>
    ${send && html`<footer class="changes-foot">
      <span class="muted" role="status">${review.remarks.length === 0 ? "Choose a line number to write a remark." : counted(written.length, "remark")}</span>
      ${review.remarks.length > 0 && html`<button class="quiet" onClick=${discard}>Discard</button>`}
      <button class="primary" disabled=${written.length === 0} onClick=${sendAll}>Send as one prompt</button>
    </footer>`}
  </section>`;
}

/** Chooses between the disk and what the agent tells, and between turns. `turns` are those of the disk, or null without it. */
function Choice({ turns, value, onChoice }) {
  const said = html`<option value=${TOLD}>Whole session</option><option value=${TOLD_TURN}>Since the last prompt</option>`;
  return html`<select aria-label="Which changes" value=${value} onChange=${(event) => onChoice(event.target.value)}>
    ${turns !== null && html`<optgroup label="On the disk">${turns.map(({ mark, text }) => html`<option key=${mark} value=${mark === null ? "disk" : `disk ${mark}`}>${text}</option>`)}</optgroup>`}
    ${turns === null ? said : html`<optgroup label="As the agent tells">${said}</optgroup>`}
  </select>`;
}

/** The remarks of a session, which the tab keeps. `editing` is the id of the one that is being written. */
function useRemarks(sessionId) {
  const name = `remarks ${sessionId}`;
  const [remarks, setRemarks] = useState(() => remarksOf(read(ofTab, name)));
  const [editing, setEditing] = useState(/** @type {any} */ (null));
  const set = (next) => {
    setRemarks(next);
    keep(ofTab, name, next.length === 0 ? null : JSON.stringify(next));
  };
  const one = remarks.find(({ id }) => id === editing);
  const latest = useRef(/** @type {any} */ (null));
  latest.current = {
    latest,
    remarks,
    editing,
    edit: setEditing,
    change: (id, text) => set(remarks.map((remark) => (remark.id === id ? { ...remark, text } : remark))),
    remove: (id) => {
      set(remarks.filter((remark) => remark.id !== id));
      setEditing(null);
    },
    clear: () => {
      set([]);
      setEditing(null);
    },
    /** Begins a remark, or extends the one without a text to another line of the same change. */
    pick: (path, edit, rows, row, extend) => {
      const open = one && one.path === path && one.edit === edit && (extend || one.text === "") ? one : null;
      const line = lineOf(row);
      const between = open ? linesBetween(rows, open.anchor, line) : [];
      const rest = remarks.filter(({ id, text }) => id !== open?.id && (text !== "" || id !== editing));
      const id = open?.id ?? Math.max(0, ...remarks.map((remark) => remark.id)) + 1;
      const [anchor, lines] = open && between.length > 0 ? [open.anchor, between] : [line, [line]];
      set([...rest, { id, path, edit, anchor, lines, text: open?.text ?? "" }]);
      setEditing(id);
    },
  };
  return latest.current;
}

/** Says that changes may be missing, because the transcript is not here from its beginning. */
function Missing({ older, onLoadOlder }) {
  if (older === "cut") return html`<p class="note">What is older is not kept any more: changes of that time are not here.</p>`;
  if (older !== "more" && older !== "loading") return null;
  return html`<p class="note">Older parts of the conversation are not loaded: changes of that time are not here.
    <button class="quiet" disabled=${older === "loading"} onClick=${onLoadOlder}>Load them</button></p>`;
}

const UNDO_WORDS = /** @type {Record<string, string>} */ ({
  added: "The file is removed. What is in it now is lost.",
  deleted: "The file is made again, as it was.",
  modified: "The file becomes what it was. What is in it now is lost.",
});

function FileList({ files, cwd, root }) {
  const show = (i) => root.current.querySelectorAll(".changed-file")[i].scrollIntoView();
  return html`<ul class="changed-files" aria-label="Files">
    ${files.map((file, i) => html`<li key=${file.path}><button class="quiet" onClick=${() => show(i)}>
      <span class="path">${shortPath(file.path, cwd)}</span><${SumOfCounts} content=${file.edits.map(({ content }) => content)} />
    </button></li>`)}
  </ul>`;
}

function File({ file, cwd, review, undoing, byCommand }) {
  const { onDisk = null } = file;
  const [most, setMost] = useState(FIRST_EDITS);
  const shown = file.edits.slice(0, most);
  const edits = new Set(shown.map(({ key }) => key));
  const lost = (review?.remarks ?? []).filter(({ path, edit }) => path === file.path && !edits.has(edit));
  return html`<section class="changed-file" aria-label=${shortPath(file.path, cwd)}>
    <${Elsewhere} remarks=${lost} review=${review} cwd=${cwd} />
    ${onDisk !== null && html`<div class="disk-file">
      ${byCommand && html`<span class="by-command">Made by a command</span>`}
      ${undoing !== null && onDisk.why === null && html`<${Undo} label="Undo this" what=${UNDO_WORDS[onDisk.status]} run=${() => undoing.change(onDisk)} />`}
    </div>`}
    ${shown.map(({ key, content, done, line }) => html`<div key=${key} class="edit">
      ${!done && html`<p class="muted">Not done yet:</p>`}
      ${content.type === "diff"
        ? html`<${DiffView} content=${content} cwd=${cwd} line=${line} review=${review && reviewOf(review, file.path, key, undoing, onDisk)} />`
        : html`<${ChangeView} change=${content.change} cwd=${cwd} />`}
    </div>`)}
    ${file.edits.length > most && html`<button class="quiet" onClick=${() => setMost(most + FIRST_EDITS)}>Show more of ${counted(file.edits.length, "change")}</button>`}
  </section>`;
}

/** What a diff needs to take remarks on its rows, and to show them. */
function reviewOf(review, path, edit, undoing, onDisk) {
  const own = review.remarks.filter((remark) => remark.path === path && remark.edit === edit);
  return (rows) => {
    const places = own.map((remark) => rowOfRemark(rows, remark));
    const below = new Map();
    own.forEach((remark, i) => {
      if (places[i] === null) return;
      const before = below.get(places[i]) ?? [];
      below.set(places[i], [...before, html`<${Remark} key=${remark.id} remark=${remark} review=${review} />`]);
    });
    const hunks = undoing !== null && onDisk !== null ? hunksOf(rows, onDisk) : [];
    // One place is the whole file.
    for (const { last, lines } of hunks.length > 1 ? hunks : []) {
      const button = html`<${Undo} key=${`undo ${lines}`} label="Undo these lines" what="These lines become what they were. What is there now is lost." run=${() => undoing.change(onDisk, lines)} />`;
      below.set(last, [...(below.get(last) ?? []), button]);
    }
    const picked = new Set(own.flatMap(({ lines }) => linesBetween(rows, lines[0], lines[lines.length - 1]).map(lineKey)));
    return {
      pick: (row, extend) => review.latest.current.pick(path, edit, rows, row, extend),
      touches: (some) => some.some((row) => row && (below.has(row) || picked.has(lineKey(row)))),
      isPicked: (row) => picked.size > 0 && picked.has(lineKey(row)),
      below: (row) => below.get(row),
      elsewhere: html`<${Elsewhere} remarks=${own.filter((_, i) => places[i] === null)} review=${review} />`,
    };
  };
}

function lineKey({ left, right }) {
  return `${left} ${right}`;
}

/** Remarks whose lines are not in sight: the file has changed since, or they are folded. */
function Elsewhere({ remarks, review, cwd }) {
  return remarks.map((remark) => html`<div class="remark-elsewhere" key=${remark.id}>
    <p class="muted">${cwd && `${shortPath(remark.path, cwd)}, `}${placeText(remark.lines)}, not shown or changed since: <code>${oneLine(remark.lines[0].text, 80)}</code></p>
    <${Remark} remark=${remark} review=${review} />
  </div>`);
}

/** Moves the focus from a remark to the number of the line above it, or to all changes: what has the focus may go. */
function focusBeside(remark) {
  const numbers = remark.closest("tr")?.previousElementSibling?.querySelectorAll(".line-number") ?? [];
  const place = numbers[numbers.length - 1] ?? remark.closest(".changes-body");
  place?.focus({ preventScroll: true });
}

/** A remark, or the field in which it is written. */
function Remark({ remark, review }) {
  const field = useRef(/** @type {any} */ (null));
  const isOpen = review.editing === remark.id;
  useLayoutEffect(() => {
    if (isOpen) field.current?.focus();
  }, [isOpen, remark.lines.length]);
  const root = useRef(/** @type {any} */ (null));
  const leaveTo = (action) => {
    focusBeside(root.current);
    action();
  };
  const remove = () => leaveTo(() => review.remove(remark.id));
  const close = () => (remark.text.trim() === "" ? remove() : leaveTo(() => review.edit(null)));
  const onKeyDown = (event) => {
    if (isComposing(event)) return;
    if (event.key !== "Escape" && !(event.key === "Enter" && (event.ctrlKey || event.metaKey))) return;
    event.preventDefault();
    close();
  };
  const place = placeText(remark.lines);
  if (!isOpen) {
    return html`<div ref=${root} class="remark" role="note" aria-label=${`Remark on ${place}`}>
      <p dir="auto">${remark.text}</p>
      <button class="icon-button" aria-label=${`Change the remark on ${place}`} title="Change" onClick=${() => review.edit(remark.id)}><${Icon} name="edit" /></button>
      <button class="icon-button" aria-label=${`Remove the remark on ${place}`} title="Remove" onClick=${remove}><${Icon} name="delete" /></button>
    </div>`;
  }
  return html`<div ref=${root} class="remark is-open">
    <label>Remark on ${place}
      <textarea dir="auto" ref=${field} rows="3" value=${remark.text} placeholder="Another line number extends it."
        onInput=${(event) => review.change(remark.id, event.target.value)} onKeyDown=${onKeyDown}></textarea>
    </label>
    <div class="remark-actions">
      <button class="quiet" onClick=${remove}>Remove</button>
      <button class="secondary" onClick=${close}>Keep</button>
    </div>
  </div>`;
}
