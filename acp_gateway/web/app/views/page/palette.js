/** The palette: a field that finds sessions and commands, and goes there or carries them out. */
import { useLayoutEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { isKey, runOf } from "./command_keys.js";
import { COMMANDS } from "../../state/commands.js";
import { Dialog } from "../parts/dialog.js";
import { counted } from "../../text/format.js";
import { classes } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { isComposing } from "../parts/keys.js";
import { Keys } from "./key_sheet.js";
import { itemsFor } from "../../state/palette_items.js";
import { makeRoute } from "../../route/route.js";

/** `openBeside` opens a session beside the one in use, or is null; with `isBeside` the palette has sessions alone, for that. */
export function Palette({ sessions, agents, connection, isBeside = false, openBeside, onClose }) {
  const [text, setText] = useState("");
  const [active, setActive] = useState(0);
  const list = useRef(/** @type {any} */ (null));
  const commands = isBeside ? [] : COMMANDS.filter((one) => one.chosen && runOf(one.name));
  const items = itemsFor(text, commands, sessions, agents);
  const at = Math.min(active, items.length - 1);
  useLayoutEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [at, text]);
  const choose = (item, event) => {
    onClose();
    const goesBeside = openBeside && item.sessionId && (isBeside || isKey(event, "aside"));
    // After the dialog has given the focus back.
    if (goesBeside) setTimeout(() => openBeside({ sessionId: item.sessionId, requestId: null, changes: false, at: null }));
    else if (item.sessionId) location.hash = makeRoute({ sessionId: item.sessionId });
    else setTimeout(() => runOf(item.command)?.());
  };
  const onKeyDown = (event) => {
    if (isComposing(event)) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (to !== undefined && items.length > 0) setActive((to + items.length) % items.length);
    else if (event.key === "Enter" && items.length > 0) choose(items[at], event);
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} title=${isBeside ? "Open beside" : "Commands and sessions"} connection=${connection} onClose=${onClose}>
    <div class="palette">
      <input type="text" dir="auto" role="combobox" autofocus aria-label=${isBeside ? "Find a session" : "Find a session or a command"} placeholder=${isBeside ? "Session" : "Session or command"}
        aria-expanded="true" aria-autocomplete="list" aria-controls="palette-items" aria-activedescendant=${items.length > 0 ? `palette-${at}` : undefined}
        autocomplete="off" spellcheck=${false} value=${text} onKeyDown=${onKeyDown}
        onInput=${(event) => {
          setText(event.target.value);
          setActive(0);
        }} />
      <p class="hidden" aria-live="polite">${counted(items.length, "result")}</p>
      <ul class="palette-items" id="palette-items" role="listbox" aria-label="Results" ref=${list} tabindex="-1">
        ${items.map((item, i) => html`<li key=${item.key} id=${`palette-${i}`} role="option" aria-selected=${String(i === at)}
          class=${classes("palette-item", i === at && "is-active")} onClick=${(event) => choose(item, event)}>
          ${item.icon !== "" && html`<${Icon} name=${item.icon} />`}
          <span class="palette-label" dir="auto">${item.label}</span>
          ${item.hint && html`<span class="palette-hint">${item.hint}</span>`}
          ${item.state && html`<span class="muted">${item.state}</span>`}
          ${item.command && html`<span class="palette-keys"><${Keys} keys=${COMMANDS.find((one) => one.name === item.command)?.keys} /></span>`}
        </li>`)}
      </ul>
      ${items.length === 0 && html`<p class="empty">Nothing has these words.</p>`}
    </div>
  </${Dialog}>`;
}
