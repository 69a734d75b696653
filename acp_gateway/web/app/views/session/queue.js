/** The prompts that wait for the end of the turn, a time or a person: all see them; who may edits, moves and removes them, steers by one, or sends it now. */
import { useLayoutEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { counted, oneLine, sentence, timeOf } from "../../text/format.js";
import { TOUCH, useDocumentEvent, useLabel, useMedia } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { isComposing } from "../parts/keys.js";
import { isQueued, placesOf } from "../../state/queue_order.js";
import { saidText } from "../../text/words.js";

/** Give it the session's id as `key`. `change` asks the gateway for a change, and fails with the reason. */
export function Queue({ session, open, mayControl, change }) {
  const queue = open.queue.value;
  const [editing, setEditing] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const list = useRef(/** @type {any} */ (null));
  const pressed = useRef(/** @type {any} */ (null));
  const label = useLabel("Prompts that wait");
  const count = queue.length || (session.queued ?? 0);
  const own = session.clients?.find(({ you }) => you)?.identity;

  // What a person presses elsewhere is where they are now.
  useDocumentEvent("pointerdown", () => (pressed.current = null));
  // A button that was moved or removed has lost the focus.
  useLayoutEffect(() => {
    if (pressed.current === null || document.activeElement !== document.body) return;
    const { promptId, name } = pressed.current;
    const row = [...(list.current?.children ?? [])].find((it) => it.dataset.prompt === promptId);
    (row?.querySelector(`[data-name="${name}"]`) ?? list.current)?.focus();
  });
  if (count === 0 && editing === null) return null;

  const carryOut = async (prompt, name, members) => {
    pressed.current = { promptId: prompt.promptId, name };
    setProblem(null);
    try {
      await change({ promptId: prompt.promptId, ...members });
    } catch (error) {
      setProblem(error.message);
    }
  };
  const save = async () => {
    setProblem(null);
    try {
      await change({ promptId: editing.promptId, action: "edit", text: editing.text });
      pressed.current = { promptId: editing.promptId, name: "edit" };
      setEditing(null);
    } catch (error) {
      // What was typed stays: it can be copied, or sent as another prompt.
      setProblem(error.message);
    }
  };
  const end = () => {
    pressed.current = { promptId: editing.promptId, name: "edit" };
    setProblem(null);
    setEditing(null);
  };
  const isGone = editing !== null && !queue.some(({ promptId }) => promptId === editing.promptId);
  const places = placesOf(queue);
  const type = (text) => setEditing({ ...editing, text });
  return html`<section class="queue" aria-label=${label}>
    <p role="status">${statusText(count, queue.length > 0 ? queue.filter(isQueued).length : count, mayControl && session.turn)}</p>
    ${queue.length > 0 && html`<ol ref=${list} tabindex="-1" aria-label="Prompts that wait">
      ${queue.map((prompt) => html`<li key=${prompt.promptId} data-prompt=${prompt.promptId}>
        ${editing?.promptId === prompt.promptId
          ? html`<${Editor} text=${editing.text} type=${type} save=${save} end=${end} />`
          : html`<${Row} prompt=${prompt} own=${own} steers=${session.turn && session.canSteer} places=${places.get(prompt.promptId)} carryOut=${carryOut} edit=${() => setEditing(prompt)} />`}
      </li>`)}
    </ol>`}
    ${isGone && html`<${Editor} text=${editing.text} type=${type} end=${end} />`}
    <p class="error" role="alert">${problem !== null ? sentence(problem) : isGone ? "This prompt does not wait any more: the agent has it already, or it was removed." : ""}</p>
  </section>`;
}

/** What is said of all that wait; so many of these wait for the turn. */
function statusText(count, queued, stops) {
  if (count === 0) return "";
  const verb = count === 1 ? "waits" : "wait";
  const forTurn = queued === count ? " for the end of this turn" : "";
  return `${counted(count, "prompt")} ${verb}${forTurn}.${stops && queued > 0 ? ` Stop removes ${queued === count ? "all that wait" : "those for this turn"}.` : ""}`;
}

/** What a prompt waits for, if that is not the end of the turn. */
function stateText({ state, due, why }) {
  if (state === "timed") return `to be sent ${saidText(timeOf(due), Date.now())}`;
  if (state === "held") return why ? `not sent: ${oneLine(why, 140)}` : "not sent: the agent or the gateway has ended";
  return state === "lost" && "the gateway ended while the agent may have got it: it is not sent again";
}

function Row({ prompt, own, steers, places, carryOut, edit }) {
  const text = oneLine(prompt.text, 140) || "Without text";
  const time = saidText(timeOf(prompt.createdAt), Date.now());
  const about = [
    prompt.attached > 0 && `and ${counted(prompt.attached, "attachment")}`,
    prompt.identity !== own && `by ${oneLine(prompt.identity, 60)}`,
    stateText(prompt),
    time,
  ].filter(Boolean).join(" · ");
  const forTurn = isQueued(prompt);
  const button = (name, label, icon, members, isOff = false) => html`<button type="button" class="icon-button" data-name=${name}
    aria-label=${`${label}: ${oneLine(prompt.text, 40)}`} title=${label} aria-disabled=${isOff ? "true" : undefined}
    onClick=${() => isOff || (members ? carryOut(prompt, name, members) : edit())}><${Icon} name=${icon} /></button>`;
  return html`
    <span class="queue-text" dir="auto">${text}${prompt.whole ? "" : "…"} <span class="muted">${about}</span></span>
    ${prompt.mayChange && html`<span class="queue-actions">
      ${steers && forTurn && html`<button type="button" class="quiet" data-name="steer" aria-label=${`Steer: ${oneLine(prompt.text, 40)}`} title="Give it to the agent within this turn"
        onClick=${() => carryOut(prompt, "steer", { action: "steer" })}>Steer</button>`}
      ${prompt.state !== "lost" && html`<button type="button" class="quiet" data-name="now" aria-label=${`Send now: ${oneLine(prompt.text, 40)}`}
        title=${forTurn ? "Stop the agent, and send this next" : "Send it, after the turn that runs"}
        onClick=${() => carryOut(prompt, "now", { action: "send_now" })}>Send now</button>`}
      ${prompt.mayEdit && button("edit", "Edit", "edit", null)}
      ${places && button("up", "Move up", "up", { action: "move", before: places.up }, places.up === null)}
      ${places && button("down", "Move down", "down", { action: "move", ...(places.down && { before: places.down }) }, places.down === null)}
      ${button("remove", "Remove", "close", { action: "remove" })}
    </span>`}
  `;
}

/** The text of a prompt, to be changed; without `save` only to be copied. */
function Editor({ text, type, save, end }) {
  const field = useRef(/** @type {any} */ (null));
  const touch = useMedia(TOUCH);
  // Before a key comes.
  useLayoutEffect(() => {
    field.current.focus();
    field.current.setSelectionRange(text.length, text.length);
    field.current.form.scrollIntoView({ block: "nearest" });
  }, []);
  const onKeyDown = (event) => {
    if (isComposing(event)) return;
    const isEnter = event.key === "Enter" && (event.ctrlKey || event.metaKey || (!event.shiftKey && !touch));
    if (event.key !== "Escape" && !(isEnter && save)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") end();
    else save();
  };
  return html`<form class="queue-editor" onSubmit=${(event) => { event.preventDefault(); save?.(); }}>
    <textarea ref=${field} rows="2" dir="auto" aria-label="Text of the prompt that waits" value=${text} onInput=${(event) => type(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    ${save && html`<button class="secondary">Save</button>`}
    <button type="button" class="secondary" onClick=${end}>${save ? "Cancel" : "Close"}</button>
  </form>`;
}
