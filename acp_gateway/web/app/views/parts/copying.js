/** Buttons that copy what is shown: code, commands, output, paths, messages. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "./html.js";
import { Icon } from "./icons.js";

/** Time in ms for which a button says that it has copied. */
const SHOWN = 2000;

/**
 * Copies `text`, or without it what the element before the button shows: hidden characters are copied as they are seen.
 * Nothing where the browser forbids copying, as it does without TLS.
 */
export function CopyButton({ what, text = null }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), SHOWN);
    return () => clearTimeout(timer);
  }, [copied]);
  if (!navigator.clipboard) return null;
  const copy = (event) => {
    const shown = text ?? event.currentTarget.previousElementSibling.textContent;
    navigator.clipboard.writeText(shown).then(() => setCopied(true), () => {});
  };
  const label = copied ? "Copied" : `Copy the ${what}`;
  return html`<button type="button" class="copy" aria-label=${label} title=${label} onClick=${copy}><${Icon} name=${copied ? "check" : "copy"} /></button>`;
}

/** An element with a button in its corner that copies its text. */
export function Copyable({ what, children }) {
  return html`<div class="copyable">${children}<${CopyButton} what=${what} /></div>`;
}
