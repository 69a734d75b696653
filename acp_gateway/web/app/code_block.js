/** A block of code in Markdown: coloured, with buttons that copy it and wrap its lines. */
import { html } from "../vendor/standalone.module.js";
import { piecesOfText } from "./colours.js";
import { useTextColours } from "./comparisons.js";
import { CopyButton } from "./copying.js";
import { classes } from "./hooks.js";
import { useWrapping, WrapButton } from "./reading.js";

/** Length of a line, in characters, from which on wrapping makes a difference. */
const LONG_LINE = 40;

/** What other programs draw from code in these languages. */
const DRAWN = new Map([
  ...["mermaid", "plantuml", "dot", "graphviz", "d2"].map((name) => [name, "A diagram"]),
  ...["latex", "tex", "math", "katex"].map((name) => [name, "A formula"]),
]);

export function CodeBlock({ text, language = null }) {
  const colours = useTextColours(text, language);
  const [wraps, toggle] = useWrapping("code");
  const isLong = text.split("\n").some((line) => line.length > LONG_LINE);
  const drawn = DRAWN.get(language);
  return html`${drawn && html`<p class="note">${drawn}, shown as its source:</p>`}<div class=${classes("copyable", isLong && "has-two-buttons")}>
    <pre data-language=${language ?? undefined} class=${classes(wraps && "is-wrapped")}><code>${colours ? piecesOfText(text, colours).map(coloured) : text}</code></pre>
    <${CopyButton} what="code" />
    ${isLong && html`<${WrapButton} on=${wraps} toggle=${toggle} />`}
  </div>`;
}

/** A piece of code in the colour of its kind. */
export function coloured({ text, kind }) {
  return kind ? html`<span class=${`code-${kind}`}>${text}</span>` : text;
}
