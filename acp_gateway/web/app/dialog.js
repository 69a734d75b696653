/** A dialog in front of the page; the browser keeps the focus inside, and Escape closes it. */
import { html, useEffect, useRef } from "../vendor/standalone.module.js";
import { ConnectionLine } from "./header.js";
import { Icon } from "./icons.js";

/** `connection` is the state of the connection that its actions need: while that is lost they wait, which is told. */
export function Dialog({ title, connection, onClose, children }) {
  const node = useRef(null);
  useEffect(() => {
    const dialog = node.current;
    const before = document.activeElement;
    dialog.showModal();
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
      <header><h2 id="dialog-title">${title}</h2>
        <button class="icon-button" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>
      </header>
      <${ConnectionLine} connection=${connection} />
      ${children}
    </div>
  </dialog>`;
}
