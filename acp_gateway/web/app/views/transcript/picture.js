/** Shows pictures: small ones in the text, and one of them as large as the window, or as itself. */
import { render } from "../../../vendor/preact.js";
import { html } from "../parts/html.js";
import { Icon } from "../parts/icons.js";

/** A picture that a click enlarges. */
export function Picture({ src, alt }) {
  return html`<button type="button" class="picture-button" title="Enlarge" onClick=${() => enlarge(src, alt)}><img class="picture" alt=${alt || "Image"} src=${src} /></button>`;
}

/** Shows a picture in front of the page until it is closed: it stays though the transcript goes on. */
function enlarge(src, alt) {
  const dialog = document.createElement("dialog");
  dialog.className = "enlarged";
  dialog.ariaLabel = alt || "Image";
  // A click beside the picture closes it as well.
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  dialog.onclose = () => {
    render(null, dialog);
    dialog.remove();
  };
  const size = () => dialog.classList.toggle("is-whole");
  render(html`<button type="button" class="picture-button" aria-label="Change its size" onClick=${size}><img alt=${alt || "Image"} src=${src} /></button>
    <button class="icon-button" aria-label="Close" onClick=${() => dialog.close()}><${Icon} name="close" /></button>`, dialog);
  document.body.append(dialog);
  dialog.showModal();
}
