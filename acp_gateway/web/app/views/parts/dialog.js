/** A dialog in front of the page; the browser keeps the focus inside, and Escape closes it. */
import { useLayoutEffect, useRef } from "../../../vendor/hooks.js";
import { html } from "./html.js";
import { ConnectionLine } from "../session/header.js";
import { Icon } from "./icons.js";

/**
 * The focus begins at the element with `autofocus`, else at the title: not at the button that closes.
 * `connection` is the state of the connection that its actions need: while that is lost they wait, which is told.
 */
export function Dialog({ title, connection, onClose, children }) {
  const node = useRef(/** @type {any} */ (null));
  // Its end gives the focus back at once, before what else the same click does.
  useLayoutEffect(() => {
    const dialog = node.current;
    const before = /** @type {HTMLElement|null} */ (document.activeElement);
    dialog.showModal();
    if (!dialog.querySelector("[autofocus]")) dialog.querySelector("h2").focus();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  const outside = (event) => {
    if (event.target === node.current) onClose();
  };
  return html`<dialog ref=${node} aria-labelledby="dialog-title" onPointerDown=${outside}
    onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <div class="dialog">
      <header><h2 id="dialog-title" tabindex="-1">${title}</h2>
        <button class="icon-button" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>
      </header>
      <${ConnectionLine} connection=${connection} />
      ${children}
    </div>
  </dialog>`;
}
