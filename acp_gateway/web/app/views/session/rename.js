/** The dialog that gives a session another title. */
import { useLayoutEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Dialog } from "../parts/dialog.js";
import { sentence } from "../../text/format.js";

export function Rename({ session, connection, rename, onClose }) {
  const [title, setTitle] = useState(session.title ?? "");
  const [state, setState] = useState({ busy: false, error: null });
  const field = useRef(/** @type {any} */ (null));
  useLayoutEffect(() => field.current.select(), []);
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await rename(title.trim());
      onClose();
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  return html`<${Dialog} title="Rename this session" connection=${connection} onClose=${onClose}>
    <form onSubmit=${submit}>
      <label class="field"><span>Title</span>
        <input ref=${field} type="text" dir="auto" autofocus maxlength="200" value=${title} onInput=${(event) => setTitle(event.target.value)} />
      </label>
      ${state.error && html`<p class="error" role="alert">${sentence(state.error)}</p>`}
      <div class="dialog-actions">
        <button type="button" class="secondary" onClick=${onClose}>Cancel</button>
        <button class="primary" disabled=${state.busy || title.trim() === ""}>Rename</button>
      </div>
    </form>
  </${Dialog}>`;
}
