/** The ports on which programs of the session's agent listen, as chips that open them. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { portText } from "../../text/ports.js";

/**
 * They are asked for when the session is shown, when a turn begins or ends, and when other work in the background is told.
 */
export function Ports({ id, turn, background, store }) {
  const [found, setFound] = useState({ id: "", ports: /** @type {import("../../text/ports.js").Port[]} */ ([]), opens: false });
  useEffect(() => {
    let isCurrent = true;
    store.ports().then((answer) => isCurrent && setFound({ id, ...answer }));
    return () => void (isCurrent = false);
  }, [id, turn, background]);
  if (found.id !== id || found.ports.length === 0) return null;
  const show = async (port) => {
    // At once, as browsers allow only that, and without a way back to this page.
    const shown = window.open("", "_blank");
    if (shown !== null) shown.opener = null;
    const url = await store.openPort(port);
    if (url === null) shown?.close();
    else if (shown === null) location.assign(url);
    else shown.location.replace(url);
  };
  return html`<p class="turn-end ports" aria-label="Ports of the agent">${found.ports.map((port) => found.opens
    ? html`<button key=${port.port} class="quiet" onClick=${() => show(port.port)}><${Icon} name="editor" />${portText(port)}</button>`
    : html`<span key=${port.port} title=${`acp-gateway forward HOST ${port.port}`}><${Icon} name="editor" />${portText(port)}</span>`)}</p>`;
}
