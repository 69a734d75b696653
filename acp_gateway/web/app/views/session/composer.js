/** Where a prompt is written: text, mentions of files, commands, attachments; and what is chosen for the session. */
import { useLayoutEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { readAttachment } from "./attachments.js";
import { isKey, useCommand } from "../page/command_keys.js";
import { counted, oneLine, sentence, visible } from "../../text/format.js";
import { Boundary, classes, TOUCH, useLabel, useLatest, useMayFocus, useMedia } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { isComposing } from "../parts/keys.js";
import { LaterFields, queueOf } from "./later_fields.js";
import { SessionMenus } from "./menus.js";
import { promptBlocks, promptHistory } from "../../text/prompt_blocks.js";
import { Suggestions, useSuggestions } from "./suggestions.js";

/** The composer of one session, with its signals in `open`; give it the session's id as `key`. */
export function Composer({ session, open, isCovered, actions, report }) {
  const [text, setText] = useState(() => open.draft.peek());
  const [caret, setCaret] = useState(0);
  const [active, setActive] = useState(0);
  const [attachments, setAttachments] = useState(/** @type {any[]} */ ([]));
  const [dropping, setDropping] = useState(false);
  const [later, setLater] = useState(/** @type {import("./later_fields.js").Later|null} */ (null));
  const mentions = useRef(new Set());
  const recalled = useRef({ list: /** @type {string[]|null} */ (null), at: -1 });
  const field = useRef(/** @type {any} */ (null));
  const wantedCaret = useRef(/** @type {any} */ (null));
  const touch = useMedia(TOUCH);
  const mayFocus = useMayFocus();
  const takes = open.promptCapabilities.value ?? {};
  const commands = (open.commands.value ?? []).filter((command) => typeof command?.name === "string");
  // The transcript knows what the agent has changed, the session what the user has.
  const modeId = useLatest(open.toldModeId.value, open.modes.value?.currentModeId ?? null);
  const options = useLatest(open.toldOptions.value, open.configOptions.value) ?? [];
  const { list, close } = useSuggestions({ text, caret, commands, searchFiles: actions.searchFiles });
  const at = list ? Math.min(active, list.items.length - 1) : 0;
  // Two composers may have one.
  const listId = `suggestions-${encodeURIComponent(session.id)}`;
  const isEmpty = text.trim() === "" && attachments.length === 0;

  useLayoutEffect(() => {
    // In a new session there is nothing else to do; a phone would show its keyboard.
    if (!touch && open.transcript.peek().blocks.length === 0 && mayFocus()) field.current.focus();
  }, []);
  useLayoutEffect(() => {
    const node = field.current;
    if (wantedCaret.current !== null) node.setSelectionRange(wantedCaret.current, wantedCaret.current);
    wantedCaret.current = null;
    if (CSS.supports("field-sizing", "content")) return;
    node.style.height = "auto";
    node.style.height = `${node.scrollHeight}px`;
  }, [text]);

  const change = (value, position = value.length) => {
    setText(value);
    setCaret(position);
    setActive(0);
    actions.setDraft(value);
  };
  const replace = (value, position) => {
    wantedCaret.current = position;
    change(value, position);
    field.current.focus();
  };
  const choose = (item) => {
    if (list === null) return;
    if (item.path) mentions.current.add(item.path);
    const rest = text.slice(list.end).replace(/^ /, "");
    replace(text.slice(0, list.start) + item.value + rest, list.start + item.value.length);
  };
  const send = (steers = false) => {
    if (isEmpty) return;
    const queue = steers || later === null ? null : queueOf(later);
    const blocks = promptBlocks(text, {
      mentions: mentions.current, attachments, cwd: session.cwd ?? "/", embeds: Boolean(takes.embeddedContext),
    });
    change("");
    setAttachments([]);
    recalled.current = { list: null, at: -1 };
    setLater(null);
    actions.prompt(blocks, steers, queue);
  };
  const attach = async (files) => {
    // As long as an agent does not run, it is not known what it takes.
    const images = open.promptCapabilities.peek() === null || Boolean(takes.image);
    for (const file of files) {
      try {
        const attachment = await readAttachment(file, { images });
        setAttachments((all) => [...all, attachment]);
      } catch (error) {
        report(error);
      }
    }
  };
  /** Show an earlier prompt, or a later one; behind the last one the field is empty. */
  const recall = (by) => {
    const state = recalled.current;
    state.list ??= promptHistory(open.transcript.peek().blocks);
    const next = state.at + by;
    if (next < -1 || next >= state.list.length) return;
    state.at = next;
    const value = next === -1 ? "" : state.list[next];
    replace(value, value.length);
  };
  const onKeyDown = (event) => {
    if (isComposing(event)) return;
    const plainKey = !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (list && plainKey && ["ArrowDown", "ArrowUp", "Enter", "Tab", "Escape"].includes(event.key)) {
      event.preventDefault();
      const count = list.items.length;
      if (event.key === "ArrowDown") setActive((at + 1) % count);
      else if (event.key === "ArrowUp") setActive((at + count - 1) % count);
      else if (event.key === "Escape") close();
      else choose(list.items[at]);
      return;
    }
    const recalling = recalled.current.list !== null && text === (recalled.current.list[recalled.current.at] ?? "");
    if (isKey(event, "recall") && (text === "" || recalling)) {
      event.preventDefault();
      recall(1);
    } else if (event.key === "ArrowDown" && plainKey && recalling && recalled.current.at >= 0) {
      event.preventDefault();
      recall(-1);
    } else if (isKey(event, "leave")) {
      // A digit is the beginning of a text here; in the question it decides.
      field.current.closest(".view").querySelector(".permission")?.focus();
    } else if (isKey(event, "send") && !(plainKey && touch)) {
      event.preventDefault();
      send();
    }
  };
  useCommand("write", isCovered ? null : () => field.current.focus());
  // What is half written stays in front of it.
  useCommand("edit", (prompt) => replace(isEmpty ? prompt : `${text}\n\n${prompt}`, isEmpty ? prompt.length : text.length + prompt.length + 2));
  useCommand("stop", session.turn ? () => actions.cancel() : null);
  const onPaste = (event) => {
    const files = [...event.clipboardData.files];
    if (files.length === 0) return;
    event.preventDefault();
    attach(files);
  };
  const onDrop = (event) => {
    event.preventDefault();
    setDropping(false);
    attach([...event.dataTransfer.files]);
  };

  const sends = later?.at ? "Send at that time" : session.turn ? "Send after this turn" : "Send";
  return html`<form class=${classes("composer", dropping && "is-dropping")} aria-label=${useLabel("Prompt")}
    onSubmit=${(event) => { event.preventDefault(); send(); }}
    onDragOver=${(event) => { event.preventDefault(); setDropping(true); }}
    onDragLeave=${() => setDropping(false)}
    onDrop=${onDrop}
  >
    ${list && html`<${Suggestions} id=${listId} list=${list} at=${at} choose=${choose} />`}
    <p class="hidden" aria-live="polite">${list ? `${counted(list.items.length, "suggestion")}` : ""}</p>
    <${Unsent} open=${open} actions=${actions} />
    <div class="composer-field">
      <${Attachments} attachments=${attachments} remove=${(id) => setAttachments((all) => all.filter((one) => one.id !== id))} />
      <textarea ref=${field} rows="1" dir="auto" value=${text} placeholder=${placeholder(session)} aria-label="Prompt"
        autocapitalize="sentences" enterkeyhint=${touch ? "enter" : "send"} spellcheck=${true}
        aria-autocomplete="list" aria-controls=${list ? listId : undefined}
        aria-activedescendant=${list ? `${listId}-${at}` : undefined}
        onInput=${(event) => change(event.target.value, event.target.selectionStart)}
        onSelect=${(event) => setCaret(event.target.selectionStart)}
        onKeyDown=${onKeyDown} onPaste=${onPaste}
      ></textarea>
      <div class="composer-bar">
        <${AttachButton} attach=${attach} />
        <div class="choices">
          <${Boundary}><${SessionMenus} modes=${open.modes.value} modeId=${modeId} models=${open.models.value} options=${options} actions=${actions} /></${Boundary}>
        </div>
        ${session.turn && html`<button type="button" class="stop" onClick=${() => actions.cancel()} title="Stop the agent">
          <${Icon} name="stop" /><span>Stop</span>
        </button>`}
        ${session.turn && session.canSteer && html`<button type="button" class="quiet" disabled=${isEmpty} onClick=${() => send(true)} title="Send it to the agent within this turn">Steer</button>`}
        <button type="button" class="quiet" aria-expanded=${later ? "true" : "false"} title="Send it at a time"
          onClick=${() => setLater(later ? null : { at: "", auto: false })}>Later</button>
        <button class="send" disabled=${isEmpty} aria-label=${sends} title=${sends}>
          <${Icon} name="send" />
        </button>
      </div>
      ${later && html`<${LaterFields} later=${later} change=${setLater} limitedUntil=${session.limitedUntil} />`}
    </div>
  </form>`;
}

function placeholder(session) {
  if (session.turn) return "Say what is next…";
  if (!session.live) return "Continue this session…";
  return "Ask the agent…";
}

/** Prompts that are on their way, or have failed. */
function Unsent({ open, actions }) {
  const sending = open.sending.value;
  if (sending.length === 0) return null;
  return html`<div class="queued" role="status">
    ${sending.map((one) => html`<div class=${classes("sending", one.error && "is-failed")} key=${one.key}>
      <span class="sending-text" dir="auto">${oneLine(textOf(one.blocks), 200)}</span>
      ${one.error === null
        ? html`<span class="muted">Sending…</span>`
        : html`<span class="error">Not sent. ${sentence(one.error)}</span>
            <button type="button" class="quiet" onClick=${() => actions.retry(one.key)}>Send again</button>
            <button type="button" class="quiet" onClick=${() => actions.discard(one.key)}>Discard</button>`}
    </div>`)}
  </div>`;
}

function textOf(blocks) {
  return blocks.map((block) => block.text ?? block.name ?? block.type).join(" ");
}

function Attachments({ attachments, remove }) {
  if (attachments.length === 0) return null;
  return html`<ul class="attachments" aria-label="Attachments">
    ${attachments.map((one) => html`<li key=${one.id}>
      ${one.data ? html`<img alt="" src=${`data:${one.mimeType};base64,${one.data}`} />` : html`<${Icon} name="read" />`}
      <span class="attachment-name" dir="auto">${visible(one.name)}</span>
      <button type="button" class="icon-button" aria-label=${`Remove ${visible(one.name)}`} onClick=${() => remove(one.id)}><${Icon} name="close" /></button>
    </li>`)}
  </ul>`;
}

function AttachButton({ attach }) {
  const input = useRef(/** @type {any} */ (null));
  const chosen = () => {
    attach([...input.current.files]);
    input.current.value = "";
  };
  return html`
    <button type="button" class="icon-button" aria-label="Attach files" title="Attach images or text files" onClick=${() => input.current.click()}>
      <${Icon} name="attach" />
    </button>
    <input ref=${input} type="file" multiple hidden tabindex="-1" aria-label="Files" onChange=${chosen} />
  `;
}
