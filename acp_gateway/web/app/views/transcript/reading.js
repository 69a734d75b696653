/** Buttons for reading code: wrap lines, go to the next change, open a file in the editor. */
import { createContext } from "../../../vendor/preact.js";
import { useContext } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { EDITORS, editorLink } from "../../text/editors.js";
import { Icon } from "../parts/icons.js";
import { usePreference } from "../parts/preferences.js";

/** Distance in pixels from the upper edge at which a change is shown after a jump to it. */
const MARGIN = 60;

/** Elements that scroll what is in them. */
const SCROLLERS = ".changes-body, .permission-body, .scroller";

/** Whether the lines of code ("code") or of changes ("changes") are wrapped, and a function that changes that. */
export function useWrapping(what) {
  const [value, choose] = usePreference(`wrap ${what}`, what === "changes" ? "on" : "off");
  return [value === "on", () => choose(value === "on" ? "off" : "on")];
}

export function WrapButton({ on, toggle }) {
  return html`<button type="button" class="copy wrap" aria-label="Wrap lines" title="Wrap lines" aria-pressed=${String(on)} onClick=${toggle}><${Icon} name="wrap" /></button>`;
}

/** Scrolls to the first change below what is shown, or above it; `root` has the changes. */
export function jump(root, by) {
  const scroller = root.closest(SCROLLERS);
  const edge = (scroller?.getBoundingClientRect().top ?? 0) + MARGIN;
  const all = [...root.querySelectorAll(".change-start")];
  const top = (row) => row.getBoundingClientRect().top;
  const found = by > 0 ? all.find((row) => top(row) > edge + 1) : all.findLast((row) => top(row) < edge - 1);
  if (found) scroller?.scrollBy({ top: top(found) - edge });
}

/** The machine with the files, as the gateway names it: not the id of a session, which the agent chooses. Null for the page's. */
export const MachineOfFiles = createContext(null);

/** A link to a file in the editor that was chosen; nothing without one. */
export function EditorLink({ path, line }) {
  const [editor] = usePreference("editor", "");
  const machine = useContext(MachineOfFiles);
  const link = editorLink(editor, { path, line, host: machine ?? location.hostname });
  if (link === null) return null;
  const label = `Open in ${EDITORS.get(editor)}`;
  return html`<a class="copy" href=${link} aria-label=${label} title=${label}><${Icon} name="editor" /></a>`;
}

/** Chooses the editor that opens files. */
export function EditorChoice() {
  const [editor, choose] = usePreference("editor", "");
  return html`<select class="editor-choice" aria-label="Open files in" title="Open files in" value=${editor} onChange=${(event) => choose(event.target.value)}>
    ${[...EDITORS].map(([key, name]) => html`<option value=${key}>${name}</option>`)}
  </select>`;
}
