/** A block of code in Markdown: coloured, with buttons that copy it and wrap its lines. */
import { html } from "../views/parts/html.js";
import { piecesOfText } from "./colours.js";
import { useTextColours } from "./comparisons.js";
import { CopyButton } from "../views/parts/copying.js";
import { classes } from "../views/parts/hooks.js";
import { useWrapping, WrapButton } from "../views/transcript/reading.js";

/** Length of a line, in characters, from which on wrapping makes a difference. */
const LONG_LINE = 40;

/** Length of the longest line up to which the button has room beside it, also on a phone. */
const SHORT_LINE = 30;

/** What other programs draw from code in these languages. */
/** @type {Map<string, string>} */
const DRAWN = new Map(/** @type {[string, string][]} */ ([
  ...["mermaid", "plantuml", "dot", "graphviz", "d2"].map((name) => [name, "A diagram"]),
  ...["latex", "tex", "math", "katex"].map((name) => [name, "A formula"]),
]));

/** @param {{text: string, language?: string|null}} properties */
export function CodeBlock({ text, language = null }) {
  const colours = useTextColours(text, language);
  const [wraps, toggle] = useWrapping("code");
  const longest = text.split("\n").reduce((most, line) => Math.max(most, line.length), 0);
  const isLong = longest > LONG_LINE;
  const drawn = DRAWN.get(language ?? "");
  return html`<div class=${classes("snippet", !language && longest <= SHORT_LINE && "is-small")}>
    <div class="snippet-bar"><span>${drawn ? `${drawn}, shown as its source` : language}</span>
      ${isLong && html`<${WrapButton} on=${wraps} toggle=${toggle} />`}
      <${CopyButton} what="code" text=${text} />
    </div>
    <pre data-language=${language ?? undefined} class=${classes(wraps && "is-wrapped")} tabindex="0" role="group" aria-label="Code"><code>${colours ? piecesOfText(text, colours).map(coloured) : text}</code></pre>
  </div>`;
}

/** A piece of code in the colour of its kind. */
export function coloured({ text, kind }) {
  return kind ? html`<span class=${`code-${kind}`}>${text}</span>` : text;
}
