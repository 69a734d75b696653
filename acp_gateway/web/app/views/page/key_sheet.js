/** The sheet of keys. */
import { html } from "../parts/html.js";
import { IS_APPLE } from "./command_keys.js";
import { COMMANDS, keyText } from "../../state/commands.js";
import { Dialog } from "../parts/dialog.js";

const GROUPS = [["page", "On the page"], ["link", "On a session of a list, or of the palette"], ["field", "In the prompt"]];

export function KeySheet({ connection, onClose }) {
  return html`<${Dialog} title="Keys" connection=${connection} onClose=${onClose}>
    <div class="key-sheet" tabindex="0" autofocus role="region" aria-label="All keys">
      ${GROUPS.map(([at, title]) => html`<h3>${title}</h3>
        <dl>${COMMANDS.filter((one) => one.at === at && one.keys.length > 0).map((one) => html`<div>
          <dt>${one.label}</dt>
          <dd><${Keys} keys=${one.keys} /></dd>
        </div>`)}</dl>`)}
    </div>
  </${Dialog}>`;
}

/** Keys that do the same. */
export function Keys({ keys }) {
  return keys.map((key, i) => html`${i > 0 && " or "}<kbd>${keyText(key, IS_APPLE)}</kbd>`);
}
