/** Shows the parts of a message: Markdown, terminal output, images, links and attachments. */
import { h } from "../../../vendor/preact.js";
import { useRef } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { ansiSpans } from "../../text/ansi.js";
import { CodeBlock } from "../../code/code_block.js";
import { Copyable } from "../parts/copying.js";
import { baseName, oneLine, sizeText, visible } from "../../text/format.js";
import { Icon } from "../parts/icons.js";
import { renderMarkdown, safeLink } from "../../text/markdown.js";
import { NamedFile } from "../files/file_link.js";
import { Picture } from "./picture.js";

/** The parts of a message: text as Markdown, anything else by its type. */
export function Parts({ parts = [] }) {
  return parts.map((part) => (part.type === "text" ? html`<${Markdown} text=${part.text} />` : html`<${Part} part=${part} />`));
}

export function Markdown({ text }) {
  const cache = useRef(/** @type {any} */ (null));
  cache.current ??= new Map();
  return html`<div class="markdown">${renderMarkdown(withParts, text, cache.current)}</div>`;
}

/** Makes a vnode; blocks of code get colours and buttons, pictures can be enlarged, names of files are links to them. */
function withParts(tag, attributes, ...children) {
  if (tag === "img") return html`<${Picture} ...${attributes} />`;
  if (tag === "code" && typeof children[0] === "string" && children.length === 1) return html`<${NamedFile} text=${children[0]}>${h(tag, attributes, ...children)}</${NamedFile}>`;
  if (attributes?.class === "no-link") return html`<${NamedFile} text=${attributes.title}>${h(tag, attributes, ...children)}</${NamedFile}>`;
  if (tag !== "pre") return h(tag, attributes, ...children);
  const [found] = children.flat(Infinity);
  const [code] = found.type === NamedFile ? [found.props.children].flat(Infinity) : [found];
  return html`<${CodeBlock} language=${attributes?.["data-language"]} text=${[code.props.children].flat(Infinity).join("")} />`;
}

/** Terminal output, with its colours. */
export function Terminal({ text, label = "Output" }) {
  return html`<${Copyable} what="output"><pre class="terminal" tabindex="0" role="group" aria-label=${label}>${ansiSpans(text).map(({ text: piece, className }) =>
    className ? html`<span class=${className}>${piece}</span>` : piece,
  )}</pre></${Copyable}>`;
}

/** An image, a link, an attachment, or anything else by its name. */
export function Part({ part }) {
  if (part.type === "image" && part.src) return html`<${Picture} alt=${baseName(part.uri)} src=${part.src} />`;
  if (part.type === "link") return html`<${LinkPart} part=${part} />`;
  if (part.type === "resource" && part.text !== null) return html`<${Attachment} part=${part} />`;
  if (part.type === "unknown") return html`<pre class="code-text" tabindex="0">${visible(JSON.stringify(part.raw, null, 2))}</pre>`;
  const size = part.size ? ` ${sizeText(part.size)}` : "";
  return html`<span class="chip"><${Icon} name="attach" />${oneLine(baseName(part.uri ?? "") || part.mimeType || part.type)}${size}</span>`;
}

function LinkPart({ part }) {
  const name = oneLine(part.title || part.name || baseName(part.uri), 200);
  const href = safeLink(part.uri);
  const inside = html`<${Icon} name="read" /><bdi>${name}</bdi>`;
  if (!href) return html`<span class="chip" title=${oneLine(part.uri, 500)}>${inside}</span>`;
  return html`<a class="chip" href=${href} title=${oneLine(href, 500)} target="_blank" rel="noopener noreferrer">${inside}</a>`;
}

function Attachment({ part }) {
  return html`<details class="resource">
    <summary><${Icon} name="read" />${oneLine(decoded(baseName(part.uri)), 200) || "Attachment"} <span class="muted">${sizeText(part.size)}</span></summary>
    <pre class="code-text" tabindex="0" dir="auto">${visible(part.text)}</pre>
  </details>`;
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
